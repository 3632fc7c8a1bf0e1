"""Output of `swift config`: the resolved configuration, its layout, the schema, and samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import yaml

from swift.config.sections import Config
from swift.errors import SwiftError
from swift.parsing import Parsed
from swift.plugins.blame import error_line
from swift.plugins.discover import allowed_plugins
from swift.plugins.hooks import describe_plan, layout_of
from swift.plugins.kinds import KINDS
from swift.plugins.load import load, load_backend
from swift.processes.group import wanted_group
from swift.terminal import IMPORTS, print_note, waiting

if TYPE_CHECKING:
    from swift.contracts import Objective
    from swift.data.streaming import SampleStream


def resolved_yaml(parsed: Parsed) -> str:
    """Return the whole configuration as a file that reproduces the run."""
    return yaml.safe_dump(parsed.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def processes_of(parsed: Parsed) -> int:
    """Return the number of processes of the run on all machines."""
    here, machines = wanted_group(parsed.environment, parsed.nproc)
    return here * machines


def layout(parsed: Parsed) -> str:
    """Return the layout of processes as comment lines below the YAML."""
    config, backend = parsed.config, load_backend(parsed.config.backend.name)
    here, machines = wanted_group(parsed.environment, parsed.nproc)
    where = "on this machine" if machines == 1 else f"on {machines} machines"
    cut = layout_of(backend, config, here * machines)
    sizes = {"dp": cut.data, "tp": cut.tp, "pp": cut.pp, "cp": cut.cp}
    if cut.ulysses > 1:
        sizes["ulysses"] = cut.ulysses
    rows = config.train.global_batch or config.train.micro_batch * config.train.accumulation * cut.data
    lines = [
        f"# backend: {config.backend.name}, objective: {config.objective.name}",
        f"# processes {where}: {cut.world} = {' × '.join(f'{name} {size}' for name, size in sizes.items())}",
        f"# rows per optimizer step: {rows}",
    ]
    lines.extend(f"# {line}" for line in describe_plan(backend, config, cut.world))
    lines.extend(f"# {note}" for note in parsed.notes)
    lines.extend(f"# {note}" for note in (_length_note(config),) if note is not None)
    return "\n".join(lines) + "\n"


def _length_note(config: Config) -> str | None:
    """Return a note where the typed limit of samples exceeds the positions of a model in a local folder."""
    from swift.models.config_file import StoredConfig
    from swift.models.locate import folder_of
    from swift.models.longer_context import config_in_force
    from swift.models.positions import limit_note

    if config.model.path is None or "max_length" not in config.data.model_fields_set:
        return None
    folder = folder_of(config.model.path)
    if folder is None:
        return None
    return limit_note(config.data.max_length, StoredConfig(config_in_force(folder, config.model)), config.model.path)


def open_samples(parsed: Parsed) -> Callable[[int], None]:
    """Open model and data set, and return the function that prints the first usable samples.

    It marks the trained tokens, and says why rows between were skipped. The data set is streamed, so that only the
    printed part is read.
    """
    with waiting(IMPORTS):
        from swift.models.quiet import quiet_libraries

        quiet_libraries()
        from swift.data.pipeline import prepare_data
        from swift.models.media_processor import MediaProcessor
        from swift.models.source import open_source

    config = parsed.config
    with waiting(f"Opening {config.model.path}"):
        source = open_source(config.model, say=print_note, seed=config.train.seed)
        tokenizer, processor = source.tokenizer, source.processor
    objective = parsed.objective.for_model(config.model).for_tokenizer(tokenizer)
    first_rows = {"streaming": True, "shuffle": False, "validation": (), "split_ratio": 0.0}
    data = prepare_data(
        config.data.model_copy(update=first_rows),
        tokenizer,
        encoding=objective.encoding,
        seed=config.train.seed,
        say=print_note,
        images=None if processor is None else MediaProcessor(processor, config.data),
    )
    assert data.stream is not None
    return partial(_print_samples, data.stream, tokenizer, objective)


def _print_samples(stream: SampleStream, tokenizer: Any, objective: Objective, count: int) -> None:
    from rich.console import Console

    from swift.data.encodings import encoding_of
    from swift.data.preview import preview

    console = Console()
    for number, encoded in enumerate(islice(stream.epoch(0), count), start=1):
        console.rule(f"sample {number}", align="left")
        console.print(preview(tokenizer, encoded, encoding_of(objective.encoding)))
    for line in stream.report.lines():
        console.print(line, style="dim", markup=False, highlight=False)


def schema_json() -> str:
    """Return the JSON Schema of a configuration file, with the sections of plugins by the name that selects them."""
    schema = Config.model_json_schema()
    definitions = schema["$defs"]
    for group, kind in KINDS.items():
        section, key = kind.section, kind.selected_by
        if section is None:
            continue
        branches: list[dict[str, Any]] = []
        for entry in allowed_plugins(group):
            try:
                model = load(entry).config_model
            except SwiftError:
                continue  # `swift plugins --check` reports it
            assert model is not None
            try:
                own = model.model_json_schema(ref_template=f"#/$defs/{section}.{entry.name}.{{model}}")
            except Exception as error:  # a type that JSON Schema does not know, or a plugin's own code
                print_note(f"Note: the schema omits {entry}, whose options have no JSON Schema: {error_line(error)}")
                continue
            definitions.update({f"{section}.{entry.name}.{name}": part for name, part in own.pop("$defs", {}).items()})
            properties = {key: {"const": entry.name}, **own.get("properties", {})}
            branches.append({"if": _named(entry.name, section, key), "then": {"properties": properties}})
        if branches:
            definitions[f"{section.title()}Section"]["allOf"] = branches
    return json.dumps(schema, indent=2) + "\n"


def _named(name: str, section: str, key: str) -> dict[str, Any]:
    default = Config().model_dump()[section][key]
    condition: dict[str, Any] = {"properties": {key: {"const": name}}}
    return condition if name == default else {**condition, "required": [key]}

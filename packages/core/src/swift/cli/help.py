"""`swift sft --help`: every field of the configuration in groups, with its default and the flags that set it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from swift.cli.verbs import VERBS
from swift.cli.words import HELP
from swift.config.aliases import flags_of
from swift.config.draft import Draft
from swift.config.fields import Field, core_fields, model_fields
from swift.config.flags import OWN_FLAGS, read_flags
from swift.config.parse import VERB_OBJECTIVES
from swift.config.sections import Config
from swift.errors import ConfigError, SwiftError
from swift.plugins.load import LoadedPlugin, load_backend, load_objective

_EXAMPLES = {
    "pt": "swift pt --model qwen3-0.6b --dataset corpus.jsonl --packing",
    "sft": "swift sft --model qwen3-0.6b --dataset data.jsonl --num_train_epochs 3",
    "rlhf": "swift rlhf --rlhf_type dpo --model qwen3-0.6b --dataset pairs.jsonl",
    "train": "swift train --train_type sft --model qwen3-0.6b --dataset data.jsonl",
}


def show_training_help(verb: str, args: Sequence[str], console: Console | None = None) -> None:
    """Print the help of one training verb, with the fields of the backend and objective that `args` name."""
    console = console or Console()
    console.print(Text(f"swift {verb}", style="bold").append(f": {VERBS[verb].summary}", style="not bold"))
    console.print(Text(f"\n  {_EXAMPLES[verb]}\n  swift {verb} config.yaml --optim.lr 2e-5\n"))
    console.print(
        "A configuration file is outranked by flags. Every field is a flag; [cyan]-[/] and [cyan]_[/] mean the same."
        " [cyan]--nproc N[/] starts N processes on this machine.",
        highlight=False,
    )
    for name, info in Config.model_fields.items():
        fields = [field for field in core_fields().values() if field.section == name]
        section = info.annotation
        assert section is not None
        _show_group(console, name, (section.__doc__ or "").split("\n")[0], fields)
        if name in ("backend", "objective"):
            _show_plugin(console, name, _chosen(name, verb, args))


def _chosen(section: str, verb: str, args: Sequence[str]) -> str:
    """The plugin that the words beside `--help` name, or the default."""
    words = Draft()
    with suppress(ConfigError):  # whoever asks for help may have typed something wrong
        for flag in read_flags([word for word in args if word not in HELP])[0]:
            if flag.name not in OWN_FLAGS:
                words.add_flag(flag)
    asked = words.assignments.get(f"{section}.name")
    if asked is not None:
        return str(asked.value)
    if section == "objective":
        return VERB_OBJECTIVES.get(verb, "dpo" if verb == "rlhf" else "sft")
    return "torch"


def _show_plugin(console: Console, section: str, name: str) -> None:
    load = load_backend if section == "backend" else load_objective
    try:
        plugin: LoadedPlugin = load(name)
    except SwiftError as error:
        console.print(Text(f"  {error}", style="yellow"))
        return
    assert plugin.config_model is not None
    fields = list(model_fields(plugin.config_model, section))
    if fields:
        _show_group(console, f"{section} {name}", f"Options of {plugin.entry}.", fields)


def _show_group(console: Console, title: str, summary: str, fields: Iterable[Field]) -> None:
    console.print(Text(f"\n{title}", style="bold").append(f"  {summary}", style="dim"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for field in fields:
        text = Text(field.description or "Not described by its plugin")
        text.append(f" [{field.type_name}; {_default(field.default)}]", style="dim")
        also = " ".join(f"--{flag}" for flag in flags_of(field.key))
        if also:
            text.append(f"\n{also}", style="cyan")
        table.add_row(Text(f"  --{field.key}", style="green"), text)
    console.print(table)


def _default(value: Any) -> str:
    if value is None or value in ((), {}, ""):
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value)

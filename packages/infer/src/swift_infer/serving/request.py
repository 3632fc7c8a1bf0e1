"""Resolves the options of `swift serve` into a request for an engine. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from swift.checkpoint import WeightsLocation, check_weights_of, display_name, find_weights
from swift.config.sections import ModelSection
from swift.contracts import TOKEN_SCORES, Objective, ServeRequest
from swift.errors import ModelError, UsageError
from swift.models import (
    check_tokenizer,
    check_weights,
    locate_model,
    read_config,
    stored_pair_template,
)
from swift.models.adapter_file import ADAPTER_CONFIG
from swift.models.files import SafetensorsFolder
from swift.parsing.tasks import CAUSAL_LM, check_generates, returns
from swift.untrusted import typed_path
from swift_infer.scoring import scoring_objective
from swift_infer.serving.fit import check_fit, read_adapter
from swift_infer.serving.options import ServeOptions
from swift_infer.serving.scores import served_scores

DTYPES = ("float32", "bfloat16", "float16")


def serve_request(
    options: ServeOptions,
    *,
    passed_on: tuple[str, ...] = (),
    tasks: Collection[str] = (CAUSAL_LM,),
    say: Callable[[str], None],
) -> ServeRequest:
    """Find the model and its adapters, and check that they are complete and fit; `tasks` are the engine's."""
    model = str(options.model)
    location = find_weights(model, trust_remote_code=options.trust_remote_code)
    objective = _scoring_objective(location, options, tasks)
    task = TOKEN_SCORES if objective is not None else location.weights.task
    _check_task(location, options, tasks, task)
    known_as, folder = locate_model(location.weights, say=say)
    _check_model(folder, location.weights)
    called = display_name(model)
    adapters: dict[str, Path] = {}
    if location.adapter is not None:
        base = display_name(known_as)
        own = options.name or called
        adapters[own if own != base else f"{own}-adapter"] = location.adapter
    else:
        base = options.name or called
    for name, path in map(_named, options.adapters):
        if name in adapters or name == base:
            raise UsageError(
                f"Two models have the name {name!r}.", hint=f"Rename one: --adapters {name}-2={path}, or --name"
            )
        adapters[name] = _adapter_of(path)
    for path in adapters.values():
        check_fit(path, folder)
    template, tokens = location.weights.chat_template or _pair_template(folder, task), None
    if objective is not None:
        template, tokens = served_scores(objective, location, folder, say=say)
    return ServeRequest(
        model=folder,
        name=base,
        adapters=adapters,
        host=options.host,
        port=options.port,
        api_key=options.api_key,
        dtype=_dtype(options.dtype, folder),
        max_length=options.max_length,
        system=location.system,
        chat_template=template,
        trust_remote_code=options.trust_remote_code,
        runtime_adapters=options.runtime_adapters,
        python=options.python,
        verbose=options.verbose,
        passed_on=passed_on,
        task=task,
        decision_tokens=tokens,
        template_arguments={} if options.enable_thinking is None else {"enable_thinking": options.enable_thinking},
    )


def _scoring_objective(location: WeightsLocation, options: ServeOptions, tasks: Collection[str]) -> Objective | None:
    """Return the objective by which a language model scores; reject other models, and engines without support."""
    task = location.weights.task
    if options.task_type not in (None, CAUSAL_LM) and task != CAUSAL_LM:
        raise ModelError(
            f"--task_type {options.task_type} needs a language model, but {options.model} returns {returns(task)} "
            f"({task}).",
            hint="Remove --task_type.",
        )
    objective = scoring_objective(location, options.task_type)
    if objective is not None and TOKEN_SCORES not in tasks:
        raise UsageError(
            f"This engine cannot serve a {objective.name}.",
            hint="Pass --task_type causal_lm, or choose another --engine.",
        )
    return objective


def _check_task(location: WeightsLocation, options: ServeOptions, tasks: Collection[str], task: str) -> None:
    """Reject tasks that the engine does not serve, and adapters of models that return scores or vectors."""
    if task not in tasks:
        check_generates(str(options.model), task)
    if task != CAUSAL_LM and (location.adapter is not None or options.adapters or options.runtime_adapters):
        raise ModelError(
            f"{options.model} returns {returns(task)} ({task}), and such models cannot be served with adapters.",
            hint=f"Merge the adapter first: swift export {options.model} --to hf --out merged && swift serve merged",
        )


def _pair_template(folder: Path, task: str) -> Path | None:
    """Return the folder's own chat template where it renders a query with a document.

    Engines use one for the scores of pairs only where it is named: most models have templates that know no pairs.
    """
    return None if task == CAUSAL_LM else stored_pair_template(folder)


def _named(text: str) -> tuple[str, Path]:
    """Split `NAME=PATH`; the name of a path alone is that of its folder or run."""
    name, separator, path = text.partition("=")
    if separator and name and "/" not in name and not Path(text).exists():
        return name, typed_path(path, "--adapters", ModelError)
    return display_name(text), typed_path(text, "--adapters", ModelError)


def _adapter_of(path: Path) -> Path:
    """Return the folder of an adapter: itself, or that of the run or checkpoint that trained it."""
    if not path.is_dir():
        raise ModelError(f"The folder {path} of --adapters does not exist.", hint="Type: --adapters NAME=FOLDER")
    if (path / ADAPTER_CONFIG).is_file():
        check_weights_of(path)
        return path.resolve()
    # Only the adapter's folder is needed; its base model is not opened.
    adapter = find_weights(str(path), trust_remote_code=True).adapter
    if adapter is None:
        read_adapter(path)  # raises the error
        raise ModelError(
            f"{path} is not an adapter: all weights were trained.", hint=f"Serve it as the model: swift serve {path}"
        )
    return adapter.resolve()


def _check_model(folder: Path, section: ModelSection) -> None:
    """Reject models that would fail, before a server is started."""
    config = read_config(folder)
    if section.random_weights:
        raise ModelError(
            f"The adapter was trained on a randomly initialized model ({folder}), whose weights are not stored.",
            hint="Merge it first: swift export RUN --to hf --out FOLDER && swift serve FOLDER",
        )
    check_tokenizer(folder)
    # Headers reveal missing, damaged and truncated files.
    check_weights(SafetensorsFolder(folder), config, folder)


def _dtype(requested: str, folder: Path) -> str:
    """Return the dtype of the folder unless one is requested: 'auto' means different things to engines."""
    if requested != "auto":
        return requested
    config = read_config(folder)
    stored = str(config.get("dtype") or config.get("torch_dtype") or "auto").removeprefix("torch.")
    return stored if stored in DTYPES else "auto"

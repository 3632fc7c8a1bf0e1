"""From what the user names to what an engine is asked to serve. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from swift.config.sections import ModelSection
from swift.config.tasks import CAUSAL_LM, check_generates, returns
from swift.contracts import ServeRequest
from swift.errors import ModelError, UsageError
from swift.infer.find import (
    ADAPTER_FILE,
    GENERATIVE,
    WeightsLocation,
    check_weights_of,
    display_name,
    find_weights,
    is_generative_reranker,
)
from swift.models.config_file import read_config
from swift.models.files import SafetensorsFolder
from swift.models.locate import locate
from swift.models.pair_template import renders_pairs
from swift.models.tokenizer import TEMPLATE, TOKENIZER_FILES, check_settings
from swift.models.weights_check import check_weights
from swift.serve.fit import check_fit, read_adapter
from swift.serve.options import ServeOptions
from swift.serve.reranker import asked_for_scores
from swift.untrusted import read_text, typed_path

DTYPES = ("float32", "bfloat16", "float16")


def serve_request(
    options: ServeOptions,
    *,
    passed_on: tuple[str, ...] = (),
    tasks: Collection[str] = (CAUSAL_LM,),
    say: Callable[[str], None],
) -> ServeRequest:
    """Find everything, and check that it is there, whole, and belongs together. The engine serves models of `tasks`."""
    model = str(options.model)
    place = find_weights(model, trust_remote_code=options.trust_remote_code)
    task: str = place.weights.task
    if options.task_type != CAUSAL_LM and is_generative_reranker(place.objective, options.task_type):
        task = GENERATIVE
    _check_task(place, options, tasks, task)
    known_as, folder = locate(place.weights, say=say)
    _check_model(folder, place.weights)
    called = display_name(model)
    adapters: dict[str, Path] = {}
    if place.adapter is not None:
        base = display_name(known_as)
        own = options.name or called
        adapters[own if own != base else f"{own}-adapter"] = place.adapter
    else:
        base = options.name or called
    for name, path in map(_named, options.adapters):
        if name in adapters or name == base:
            raise UsageError(
                f"Two models would be called {name!r}.", hint=f"Name them: --adapters {name}-2={path} (or --name)"
            )
        adapters[name] = _adapter_of(path)
    for path in adapters.values():
        check_fit(path, folder)
    asked = asked_for_scores(place, folder, say=say) if task == GENERATIVE else None
    return ServeRequest(
        model=folder,
        name=base,
        adapters=adapters,
        host=options.host,
        port=options.port,
        api_key=options.api_key,
        dtype=_dtype(options.dtype, folder),
        max_length=options.max_length,
        system=place.system,
        chat_template=asked.template if asked else place.weights.chat_template or _pair_template(folder, task),
        trust_remote_code=options.trust_remote_code,
        runtime_adapters=options.runtime_adapters,
        python=options.python,
        verbose=options.verbose,
        passed_on=passed_on,
        task=task,
        answers=asked.answers if asked else None,
        template_arguments={} if options.enable_thinking is None else {"enable_thinking": options.enable_thinking},
    )


def _check_task(place: WeightsLocation, options: ServeOptions, tasks: Collection[str], task: str) -> None:
    """Refuse a model of a task that the engine does not serve, and adapters of one that returns scores or vectors."""
    if task == GENERATIVE:
        _check_reranks(place, options, tasks)
    elif task not in tasks:
        check_generates(str(options.model), task)
    if task != CAUSAL_LM and (place.adapter is not None or options.adapters or options.runtime_adapters):
        raise ModelError(
            f"{options.model} returns {returns(task)} ({task}): such a model is served with its adapter merged.",
            hint=f"Type: swift export {options.model} --to hf --out merged && swift serve merged"
            + f" --task_type {GENERATIVE}" * (task == GENERATIVE),
        )


def _check_reranks(place: WeightsLocation, options: ServeOptions, tasks: Collection[str]) -> None:
    """Refuse what is no language model, and an engine that does not read its yes and its no."""
    if place.weights.task != CAUSAL_LM:
        raise ModelError(
            f"{options.model} returns {returns(place.weights.task)} ({place.weights.task}) and has no yes and no to "
            "be asked for.",
            hint="Leave --task_type out.",
        )
    if GENERATIVE not in tasks:
        raise UsageError(
            f"The engine does not serve a {GENERATIVE}.", hint="Type --task_type causal_lm, or choose another --engine."
        )


def _pair_template(folder: Path, task: str) -> Path | None:
    """Return the folder's own chat template where it renders a query with a document.

    Engines use one for the scores of pairs only where it is named: most models have templates that know no pairs.
    """
    template = folder / TEMPLATE
    pairs = task != CAUSAL_LM and template.is_file() and renders_pairs(read_text(template, ModelError))
    return template if pairs else None


def _named(text: str) -> tuple[str, Path]:
    """`NAME=PATH`; a path alone is called what its folder or run is called."""
    name, separator, path = text.partition("=")
    if separator and name and "/" not in name and not Path(text).exists():
        return name, typed_path(path, "--adapters", ModelError)
    return display_name(text), typed_path(text, "--adapters", ModelError)


def _adapter_of(path: Path) -> Path:
    """Return the folder of an adapter: itself, or that of the run or checkpoint that trained it."""
    if not path.is_dir():
        raise ModelError(f"There is no folder {path} for --adapters.", hint="Type: --adapters NAME=FOLDER")
    if (path / ADAPTER_FILE).is_file():
        check_weights_of(path)
        return path.resolve()
    # Only the adapter's folder is asked for; the model that it was trained on is not opened.
    adapter = find_weights(str(path), trust_remote_code=True).adapter
    if adapter is None:
        read_adapter(path)  # says that it is none
        raise ModelError(f"{path} trained all weights, not an adapter.", hint=f"Type: swift serve {path}")
    return adapter.resolve()


def _check_model(folder: Path, section: ModelSection) -> None:
    """Refuse what can be known to fail before a server is started."""
    config = read_config(folder)
    if section.random_weights:
        raise ModelError(
            f"The adapter was trained on random weights over {folder}, which nothing kept.",
            hint="Type: swift export RUN --to hf, and serve what it writes.",
        )
    if not any(True for pattern in TOKENIZER_FILES for _ in folder.glob(pattern)):
        raise ModelError(
            f"{folder} has no tokenizer: tokenizer.json is missing.", hint="Copy the tokenizer's files next to it."
        )
    check_settings(folder)
    # The headers say whether files are missing, damaged or cut off.
    check_weights(SafetensorsFolder(folder), config, folder)


def _dtype(asked: str, folder: Path) -> str:
    """Return the dtype of the folder unless one is requested: engines have other ideas of 'auto'."""
    if asked != "auto":
        return asked
    config = read_config(folder)
    stored = str(config.get("dtype") or config.get("torch_dtype") or "auto").removeprefix("torch.")
    return stored if stored in DTYPES else "auto"

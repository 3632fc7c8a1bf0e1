"""Compare an inference engine's outputs for an export with the training state, as those of transformers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swift.config.tasks import CAUSAL_LM
from swift.errors import ExportError, ModelError
from swift.export.verify.compare import Account, Tolerance, compare
from swift.export.verify.reference import Reference
from swift.plugins.discover import list_plugins
from swift.plugins.known import ENGINE, ENGINE_TITLE, install_command
from swift.plugins.load import load_engine

_LENGTH = 16


def engine_is_there() -> bool:
    """Return whether the engine and the plugin that speaks to it are installed."""
    names = {entry.name for entry in list_plugins("swift.engines") if entry.allowed}
    return ENGINE in names and importlib.util.find_spec(ENGINE) is not None


def engine_returns(task: str) -> bool:
    """Return whether the engine can be asked for what models of a task return; True where it is not installed."""
    if task == CAUSAL_LM or not engine_is_there():
        return True
    return task in (getattr(load_engine(ENGINE).object, "tasks", None) or ())


def compare_by_engine(
    folder: Path,
    reference: Reference,
    tolerance: Tolerance,
    *,
    dtype: str,
    required: bool,
    say: Callable[[str], None],
    base: Path | None = None,
    task: str = CAUSAL_LM,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Compare and return the report; `ExportError` names the first token, score or number of a vector that differs.

    Where the engine cannot load the folder, that is an error if the export is meant for it (`required`), and
    a note if not.
    An adapter is asked on top of its `base` model.
    """
    from swift.export.verify.ask import EngineQuestion, ask_engine

    if not engine_is_there():
        say(f"Not compared with {ENGINE_TITLE}: it is not installed ({install_command('swift.engines', ENGINE)})")
        return {"compared": False, "reason": "not installed"}
    say(f"Comparing with {ENGINE_TITLE} in another process")
    question = EngineQuestion(
        engine=ENGINE,
        model=str(folder if base is None else base),
        adapter=None if base is None else str(folder),
        prompts=reference.prompts,
        max_new_tokens=_LENGTH,
        dtype=dtype,
        max_length=max(map(len, reference.prompts)) + _LENGTH,
        trust_remote_code=trust_remote_code,
        task=task,
        options={"enforce_eager": True},
    )
    try:
        returned = ask_engine(question)
    except ModelError as error:
        if required:
            raise ExportError(f"{ENGINE_TITLE} does not load the export. {error.message}", hint=error.hint) from error
        say(f"Not compared with {ENGINE_TITLE}: {error.message}")
        return {"compared": False, "reason": error.message}
    account = Account(ENGINE_TITLE, returned.logps, returned.greedy, returned.greedy_logps, returned.vectors)
    cause = (
        "transformers agrees with the training state. "
        f"Report it with this model's config.json and {ENGINE_TITLE}'s version."
    )
    return {"compared": True, "dtype": dtype, **compare(reference, account, tolerance, cause=cause)}

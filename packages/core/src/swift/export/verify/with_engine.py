"""Compare an inference engine's outputs for an export with the training state, as those of transformers."""

from __future__ import annotations

import importlib.util
from typing import Any

from swift.errors import ExportError, ModelError
from swift.export.job import ExportJob, is_adapter, trusted
from swift.export.verify.compare import Reference, Tolerance, compare
from swift.parsing.tasks import CAUSAL_LM, returns, task_of
from swift.plugins.discover import list_plugins
from swift.plugins.known import ENGINE, ENGINE_TITLE, install_command
from swift.plugins.load import load_engine

_LENGTH = 16
_CAUSE = (
    "transformers agrees with the training state. "
    f"Report it with this model's config.json and {ENGINE_TITLE}'s version."
)


def compare_by_engine(job: ExportJob, reference: Reference, tolerance: Tolerance, *, dtype: str) -> dict[str, Any]:
    """Compare what was written and return the report; `ExportError` names the first token or score that differs.

    Where the engine cannot load the folder, that is an error if the export is meant for it, and a note if not.
    An adapter is asked on top of its base model.
    """
    from swift.export.verify.ask import ask_engine

    task, adapter = task_of(job.source), is_adapter(job.temporary)
    installed = engine_is_there()
    if installed and task not in (CAUSAL_LM, *(getattr(load_engine(ENGINE).object, "tasks", None) or ())):
        return not_compared(job, f"it does not return the {returns(task)} of a {task} model")
    if adapter and task != CAUSAL_LM:
        return not_compared(job, f"it takes no adapter of a model that returns {returns(task)}")
    if adapter and job.base is None:
        return not_compared(job, "the adapter's base model has random weights, which are not stored")
    if not installed:
        job.say(f"Not compared with {ENGINE_TITLE}: it is not installed ({install_command('swift.engines', ENGINE)})")
        return {"compared": False, "reason": "not installed"}
    job.say(f"Comparing with {ENGINE_TITLE} in another process")
    request = {
        "model": str(job.base if adapter else job.temporary),
        "adapter": str(job.temporary) if adapter else None,
        "dtype": dtype,
        "max_length": max(map(len, reference.prompts)) + _LENGTH,
        "trust_remote_code": trusted(job.source),
        "task": task,
        "options": {"enforce_eager": True},
    }
    try:
        outputs = ask_engine(ENGINE, request, reference.prompts, most=_LENGTH)
    except ModelError as error:
        if job.to == ENGINE:
            raise ExportError(f"{ENGINE_TITLE} does not load the export. {error.message}", hint=error.hint) from error
        return not_compared(job, error.message)
    found = compare(reference, outputs, tolerance, who=ENGINE_TITLE, cause=_CAUSE)
    return {"compared": True, "dtype": dtype, **found}


def engine_is_there() -> bool:
    """Return whether the engine and the plugin that speaks to it are installed."""
    names = {entry.name for entry in list_plugins("swift.engines") if entry.allowed}
    return ENGINE in names and importlib.util.find_spec(ENGINE) is not None


def not_compared(job: ExportJob, reason: str) -> dict[str, Any]:
    """Say why the engine is not asked, and return what the report says of it."""
    job.say(f"Not compared with {ENGINE_TITLE}: {reason}")
    return {"compared": False, "reason": reason}

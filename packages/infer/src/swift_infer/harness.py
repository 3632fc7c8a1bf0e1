"""`swift eval --tasks`: the tasks of lm-evaluation-harness, run with swift's engines."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift.errors import DataError, SwiftError, UsageError, did_you_mean
from swift.installation import pip_install
from swift_infer.chat_engine import find_model, open_local
from swift_infer.options import ModelOptions

SET_ASIDE = Path(sys.prefix) / "harness"
"""Where `make setup` installs it, so that transformers does not import its dependencies."""


@dataclass(frozen=True)
class TaskRequest:
    """Which tasks are run, and how."""

    names: tuple[str, ...]
    folder: Path | None = None
    """Holds task files in addition to those of the harness."""
    shots: int | None = None
    limit: int | None = None
    chat: bool = False
    """Whether prompts are rendered by the chat template."""
    result: Path | None = None


def run_tasks(
    request: TaskRequest, options: ModelOptions, *, batch_size: int | None = None, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Run tasks of the harness on a model; return task → metric → value."""
    folder, names = request.folder, request.names
    if importlib.util.find_spec("lm_eval") is None and (SET_ASIDE / "lm_eval").is_dir():
        sys.path.append(str(SET_ASIDE))
    elif importlib.util.find_spec("lm_eval") is None:
        raise UsageError(
            "--tasks needs lm-evaluation-harness, which is not installed.",
            hint=f"Run: {pip_install('swift-core[eval]')}",
        )
    if folder is not None and not folder.is_dir():
        raise UsageError(f"The folder {folder} of --tasks_dir does not exist.", hint="Check the path.")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    # The harness takes seconds to index its thousands of tasks.
    tasks = TaskManager(include_path=None if folder is None else str(folder), include_defaults=folder is None)
    if folder is not None and any(name not in tasks.all_tasks for name in names):
        tasks = TaskManager(include_path=str(folder))
    for name in names:
        if name not in tasks.all_tasks:
            raise UsageError(
                f"Unknown task {name!r} of lm-evaluation-harness.{did_you_mean(name, tasks.all_tasks)}",
                hint="Pass a task or a group of tasks, or the folder of your own with --tasks_dir.",
            )
    found = find_model(options, say=say)
    chat_engine = open_local(found, options, batch_size=batch_size, say=say)
    try:
        from swift_infer.harness_model import HarnessModel

        longest = options.max_length or int(getattr(found.source.config, "max_position_embeddings", None) or 2048)
        model = HarnessModel(chat_engine, longest=longest, say=say)
        results: Any = simple_evaluate(
            model=model,
            tasks=list(names),
            num_fewshot=request.shots,
            limit=request.limit,
            apply_chat_template=request.chat,
            system_instruction=chat_engine.system if request.chat else None,
            task_manager=tasks,
            log_samples=request.result is not None,
        )
    except SwiftError:
        raise
    except (OSError, ValueError, KeyError, ImportError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(
            f"lm-evaluation-harness could not run {', '.join(names)}: {first[0]}",
            hint="Check the network, as most tasks load data from the Hugging Face hub, or your own task files.",
        ) from error
    finally:
        chat_engine.close()
    if request.result is not None:
        _write_samples(request.result, results["samples"])
    return {task: _metrics(values) for task, values in results["results"].items()}


def _metrics(values: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics with `acc,none` as `acc`: the harness adds the filter's name, which most tasks lack."""
    return {
        name.removesuffix(",none"): value
        for name, value in values.items()
        if isinstance(value, int | float) and name != "alias"
    }


def _write_samples(result: Path, samples: dict[str, list[dict[str, Any]]]) -> None:
    with result.open("w", encoding="utf-8") as file:
        for task, lines in samples.items():
            for sample in lines:
                line = {"task": task, **sample}
                file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")

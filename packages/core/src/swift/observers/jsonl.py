"""`logging.jsonl`: one JSON object per logged step, and one about the whole run at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from swift.contracts import Run, RunSummary, StepRecord
from swift.errors import TrainingError
from swift.files import replace_file
from swift.hookspecs import hookimpl
from swift.observers.facts import unusable_samples
from swift.observers.lines import Line, Meter, line_before, mfu_of

LOGGING_FILE = "logging.jsonl"


class JsonlObserver:
    """Appends to the run's `logging.jsonl`.

    A resumed run appends to the same file, after dropping the lines of steps that it repeats, the earlier summary and
    a line that a crash left incomplete. No step is there twice.
    """

    def __init__(self) -> None:
        self._begun = False

    @hookimpl
    def swift_run_start(self, run: Run) -> None:
        self._meter = Meter(run.config.logging.steps, mfu=mfu_of(run))

    @hookimpl
    def swift_step_end(self, run: Run, record: StepRecord) -> None:
        path = run.folder / LOGGING_FILE
        line = self._meter.take(record)
        try:
            if not self._begun:
                _drop_lines_from(path, record.step)
                self._begun = True
            if (before := line_before(record)) is not None:
                _add_to_last(path, before)
            if line is not None:
                _append(path, line)
        except OSError as error:
            raise TrainingError(
                f"Cannot write {path} at step {record.step}: {error.strerror}.",
                hint="Free disk space or fix the permissions, then resume the run.",
            ) from error

    @hookimpl
    def swift_run_end(self, run: Run, summary: RunSummary) -> None:
        path = run.folder / LOGGING_FILE
        line = self._meter.rest()
        try:
            if line is not None:
                _append(path, line)
            _append(path, _summary_line(run, summary))
        except OSError as error:
            # The run is over, and the other observers still have to report it.
            run.say(f"Cannot write the summary to {path}: {error.strerror}.")


def read_lines(path: Path) -> list[Line]:
    """Return the lines of logged steps in a `logging.jsonl`; the summary and what is not JSON are left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict) and "step" in line:
            lines.append(line)
    return lines


def _summary_line(run: Run, summary: RunSummary) -> dict[str, Any]:
    return {
        "status": summary.status,
        "message": summary.message,
        "global_step": summary.steps,
        "train_runtime": summary.seconds,
        "tokens": summary.tokens,
        "unusable_samples": {reason: each.count for reason, each in unusable_samples(run).items()},
        "last_model_checkpoint": _text(summary.last_checkpoint),
        "best_model_checkpoint": _text(summary.best_checkpoint),
    }


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")


def _add_to_last(path: Path, line: Line) -> None:
    """Append a line, or merge it into the last one where both are of the same step, as in a resumed run."""
    lines = read_lines(path) if path.exists() else []
    if not lines or lines[-1]["step"] != line["step"]:
        _append(path, line)
        return
    lines[-1] |= line
    _rewrite(path, lines)


def _drop_lines_from(path: Path, step: int) -> None:
    if not path.exists():
        return
    _rewrite(path, [line for line in read_lines(path) if line["step"] < step])


def _rewrite(path: Path, lines: list[Line]) -> None:
    replace_file(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

"""Folders of runs as a trainer leaves them, without training: for tests of what looks at runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GONE = 2**22 + 17
"""A process id that Linux gives to nobody."""


def line_of(step: int, total: int = 100, **metrics: Any) -> dict[str, Any]:
    """Return a line of `logging.jsonl`."""
    usual = {"epoch": step / total, "loss": 3.0 - step / total, "grad_norm": 0.5, "learning_rate": 1e-4}
    speeds = {"elapsed_time": float(step), "remaining_time": float(total - step), "tokens_per_second": 1000.0}
    return {"step": step, "global_step/max_steps": f"{step}/{total}", **usual, **speeds, **metrics}


def summary_of(status: str, step: int, message: str = "") -> dict[str, Any]:
    """Return the last line of a run that ended with a word."""
    return {"status": status, "message": message, "global_step": step, "train_runtime": 9.0, "tokens": 900}


def write_run(
    folder: Path,
    lines: Sequence[Mapping[str, Any]] = (),
    *,
    settings: Mapping[str, Any] | None = None,
    process: int | None = GONE,
) -> Path:
    """Write what every run has: settings, lines, and the lock of a process (by default of one that is gone)."""
    folder.mkdir(parents=True)
    usual = {"model.path": "org/tiny", "objective.name": "sft", "tuner.kind": "lora", "backend.name": "torch"}
    args = {"swift_version": "0.1.0", **usual, **(settings or {}), "plugins": {}, "environment": {"processes": 1}}
    (folder / "args.json").write_text(json.dumps(args), encoding="utf-8")
    (folder / "config.yaml").write_text("model:\n  path: org/tiny\n", encoding="utf-8")
    if lines:
        add_lines(folder, lines)
    if process is not None:
        (folder / ".lock").write_text(f"process {process} on {os.uname().nodename}\n", encoding="utf-8")
    return folder


def add_lines(folder: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Append to `logging.jsonl`."""
    with (folder / "logging.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)

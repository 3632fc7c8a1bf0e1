"""Files next to third-party checkpoints: ms-swift's args.json and PEFT's adapter_config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift.errors import CheckpointError
from swift.models.adapter_file import ADAPTER_CONFIG, checked_adapter
from swift.untrusted import read_json_object

ARGUMENTS = "args.json"
_TASKS = {"rm": "reward", "seq_cls": "seq_cls", "reranker": "seq_cls", "embedding": "embedding"}
"""Objective → task of the model that it trains."""
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
_MOST = 1 << 40
"""Maximum plausible number of rows per step."""


@dataclass(frozen=True)
class TrainingArgs:
    """Known facts of a run of ms-swift; None or 0 where unknown."""

    model: str | None = None
    seed: int | None = None
    rows_per_step: int = 0
    objective: str | None = None
    """The objective of a model that returns scores or vectors."""
    problem_type: str | None = None

    @property
    def task(self) -> str | None:
        return None if self.objective is None else _TASKS[self.objective]


def read_args(folder: Path) -> TrainingArgs:
    """Read ms-swift's args.json, in the folder or the one above."""
    content = _read_nearby(folder, ARGUMENTS) or {}
    model = content.get("model") or content.get("model_id_or_path")
    seed = content.get("seed")
    objective = "rm" if content.get("rlhf_type") == "rm" else content.get("task_type")
    kind = content.get("problem_type")
    return TrainingArgs(
        model=model if isinstance(model, str) else None,
        seed=seed if type(seed) is int and 0 <= seed < 1 << 32 else None,
        rows_per_step=_rows(content),
        objective=objective if isinstance(objective, str) and objective in _TASKS else None,
        problem_type=kind if kind in PROBLEM_TYPES else None,
    )


def find_adapter_config(folder: Path, named: Path | None) -> dict[str, Any] | None:
    """Read PEFT's adapter_config.json: the one that the user names, or that in the folder or the one above."""
    if named is not None:
        return checked_adapter(read_json_object(named, CheckpointError), str(named), CheckpointError)
    content = _read_nearby(folder, ADAPTER_CONFIG)
    return None if content is None else checked_adapter(content, str(folder / ADAPTER_CONFIG), CheckpointError)


def _rows(arguments: dict[str, Any]) -> int:
    whole = arguments.get("global_batch_size")
    if type(whole) is int:
        return whole if 0 < whole <= _MOST else 0
    rows = 1
    for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "global_world_size"):
        factor = arguments.get(key)
        if type(factor) is not int or factor > _MOST:
            return 0
        rows *= max(1, factor)  # ms-swift writes a world size of -1 without a launcher
    return min(rows, _MOST)


def _read_nearby(folder: Path, name: str) -> dict[str, Any] | None:
    for file in (folder / name, folder.parent / name):
        if file.exists():
            return read_json_object(file, CheckpointError)
    return None

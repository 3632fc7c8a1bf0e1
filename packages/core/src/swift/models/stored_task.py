"""Task of the model in a folder, by its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.errors import ModelError
from swift.models.adapter_file import ADAPTER_WEIGHTS
from swift.models.config_file import read_config
from swift.models.files import SafetensorsFolder
from swift.models.sentence_files import stored_pooling
from swift.parsing.tasks import CAUSAL_LM, EMBEDDING, HEADED, task_of_config

_HEADS = (".score.weight", ".classifier.weight", ".classifier.out_proj.weight")
"""Ends of the names of matrices with a row for each label, of decoders and encoders."""
_TASKS = {"SEQ_CLS": "seq_cls", "FEATURE_EXTRACTION": EMBEDDING}
"""PEFT's `task_type` of an adapter → the task of the model."""


def settings_of_folder(path: Path) -> dict[str, Any]:
    """Return the task of a model's folder and its pooling, as settings of the `model` section."""
    return _with_pooling(path, task_of_config(read_config(path)))


def _with_pooling(path: Path, task: str) -> dict[str, Any]:
    pooling = stored_pooling(path) if task == EMBEDDING else None
    return {"task": task} | ({} if pooling is None else {"pooling": pooling})


def settings_of_adapter(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task of an adapter's model, as settings of the `model` section."""
    task = _TASKS.get(str(config.get("task_type")), CAUSAL_LM)
    head = _head(path) if task in HEADED else None
    return _with_pooling(path, task) | ({} if head is None else {"num_labels": _rows(*head)})


def holds_head(adapter: Path) -> bool:
    """Return whether an adapter includes the score head of its model."""
    return _head(adapter) is not None


def _head(adapter: Path) -> tuple[SafetensorsFolder, str] | None:
    """Return the weights of an adapter, and the name of its score head; None if it has none."""
    if not (adapter / ADAPTER_WEIGHTS).is_file():
        return None
    weights = SafetensorsFolder(adapter, file=ADAPTER_WEIGHTS)
    return next(((weights, name) for name in weights.names() if name.endswith(_HEADS)), None)


def _rows(weights: SafetensorsFolder, head: str) -> int:
    shape = weights.shape(head)
    if len(shape) != 2 or not shape[0]:
        raise ModelError(
            f"{head} in {weights.folder / ADAPTER_WEIGHTS} has the invalid shape {shape}; expected (labels, width).",
            hint="Copy the adapter again.",
        )
    return shape[0]

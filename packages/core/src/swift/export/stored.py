"""Weights out of a checkpoint, and the model that its training started from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from swift.checkpoint.load import Checkpoint
from swift.checkpoint.manifest import MANIFEST
from swift.checkpoint.names import model_name, slot_owner, weight_name
from swift.checkpoint.storage import StoredTensors
from swift.config.sections import ExportSection, ModelSection
from swift.contracts import ExportRequest, ModelSource
from swift.errors import CheckpointError
from swift.export.job import installed_exporter
from swift.models.heads import VALUE_HEAD
from swift.models.plain_lora import as_plain_lora, is_frozen_factor
from swift.models.trust import section_from_file
from swift.terminal import Say

if TYPE_CHECKING:
    from swift.models.source import HfSource

_OF_PEFT = "base_model.model."


def base_of(checkpoint: Checkpoint, say: Say, *, trust_remote_code: bool = False, model: str | None = None) -> HfSource:
    """Return the model that training started from, which must be what it was; `model` is where it is now."""
    from swift.models.source import open_source

    facts = checkpoint.facts
    if not facts.config.get("model"):
        raise CheckpointError(f"{checkpoint.folder / MANIFEST} does not name the model that training started from.")
    section = section_from_file(
        ModelSection.model_validate(facts.config.get("model", {})),
        checkpoint.folder / MANIFEST,
        trust_remote_code=trust_remote_code,
    )
    if model is not None:
        section = section.model_copy(update={"path": model})
    source = open_source(section, say=say, seed=facts.seed).as_exported()
    if source.fingerprint != facts.model_fingerprint:
        raise CheckpointError(
            f"The model {section.path} is not the one that training started from.",
            hint="Restore the original model at this path, or pass its new path with --model.",
        )
    return source


def stored_weights(
    checkpoint: Checkpoint | StoredTensors, source: ModelSource, adapter: Mapping[str, Any] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the canonical stream out of a checkpoint; what was frozen comes from the base model."""
    stored = [name for name in map(weight_name, checkpoint.names()) if name is not None and name != VALUE_HEAD]
    if isinstance(checkpoint, Checkpoint):
        _check_trained(checkpoint, stored, source)
    if adapter is not None:
        ordered = sorted(stored, key=is_frozen_factor, reverse=True)
        yield from as_plain_lora((name, checkpoint.read(model_name(name))) for name in ordered)
        return
    trained = set(stored)
    for name in source.names():
        yield name, checkpoint.read(model_name(name)) if name in trained else source.read(name)


def _check_trained(checkpoint: Checkpoint, stored: Collection[str], source: ModelSource) -> None:
    """Refuse a checkpoint that has an optimizer's state of a weight, and not the weight: another would stand for it."""
    of_model = frozenset(source.names())
    kept = {name for name in map(slot_owner, checkpoint.names()) if name is not None} - {*stored}
    lost = sorted(name for name in kept if name.startswith(_OF_PEFT) or name in of_model)
    if lost:
        raise CheckpointError(
            f"{checkpoint.folder} lacks {model_name(lost[0])}, although it has its optimizer state: it is damaged.",
            hint="Copy it again, or use another checkpoint.",
        )


def write_model_weights(stored: StoredTensors, *, source: ModelSource, adapter: Mapping[str, Any] | None) -> None:
    """Put weights that others can load next to the canonical tensors: the adapter, or all weights.

    For `extra` of `save_checkpoint`: one process, a tensor at a time, out of what is on disk already, so that training
    may go on meanwhile. The manifest's checksums stand in for verification.
    """
    exporter = installed_exporter("hf" if adapter is None else "adapter")
    weights = stored_weights(stored, source, adapter)
    exporter.swift_export(None, weights, ExportRequest(stored.folder, source, adapter, ExportSection()))

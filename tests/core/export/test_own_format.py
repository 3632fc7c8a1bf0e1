"""An export in a format of its own is compared with what its exporter reads back from the disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_export_run import save, trained
from tiny import tiny_model

from swift.config.sections import ExportSection
from swift.contracts import Reloaded
from swift.errors import ExportError
from swift.export.run import export_checkpoint
from swift.hookspecs import ExporterHooks
from swift.toolkit import merged

Stored = dict[str, torch.Tensor]


class TorchFile(ExporterHooks):
    """Writes `weights.pt`; `damage` changes what was written."""

    def __init__(self, damage: Callable[[Stored], object] = lambda _: None, bits: int = 32) -> None:
        self._damage, self._bits = damage, bits

    def swift_export(self, run: Any, weights: Any, request: Any) -> Path:
        if request.adapter is not None:
            weights = merged(request.source, weights, request.adapter)
        stored = {name: self._rounded(tensor.detach().clone()) for name, tensor in weights}
        self._damage(stored)
        torch.save(stored, request.destination / "weights.pt")
        folder: Path = request.destination
        return folder

    def swift_reload(self, folder: Path, source: Any) -> Reloaded:
        stored: Stored = torch.load(folder / "weights.pt", weights_only=True)
        return Reloaded(iter(stored.items()), rounding=0.0 if self._bits == 32 else 0.02)

    def _rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._bits == 32 or tensor.ndim < 2:
            return tensor
        scale = tensor.abs().amax(-1, keepdim=True) / 127
        return (tensor / scale).round() * scale


def exported(checkpoint: Path, exporter: TorchFile) -> dict[str, Any]:
    said: list[str] = []
    folder = export_checkpoint(
        checkpoint, to="file", options=ExportSection(exist_ok=True), say=said.append, exporter=exporter
    )
    assert not any("NOT VERIFIED" in line for line in said)
    report: dict[str, Any] = json.loads((folder / "verification.json").read_text())
    return report


@pytest.mark.parametrize("tied", [False, True])
def test_own_format_is_compared_with_training(tmp_path: Path, tied: bool) -> None:
    base = tiny_model(tmp_path / "base", tie_word_embeddings=tied)
    checkpoint = save(tmp_path / "run", base, trained(base)[1])
    report = exported(checkpoint, TorchFile())
    assert (report["weights"]["equal"], report["read_back_by"]) == ("bit for bit", "file")
    assert report["greedy"]["tokens_equal"] == 64
    rounded = exported(checkpoint, TorchFile(bits=8))
    assert rounded["weights"]["equal"].startswith("within a relative error of 0.00")
    assert rounded["log_probabilities"]["mean_difference"] > report["log_probabilities"]["mean_difference"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda stored: stored.pop("lm_head.weight"), "lacks weights: lm_head.weight"),
        (lambda stored: stored["model.norm.weight"].mul_(1.001), "has other values in model.norm.weight"),
        (lambda stored: stored.update({"lm_head.weight": stored["model.embed_tokens.weight"]}), "other values in lm_h"),
        (lambda stored: stored.update({"other.weight": torch.ones(1)}), "other.weight"),
    ],
)
def test_wrong_weights_on_disk_are_refused(tmp_path: Path, damage: Callable[[Stored], object], reason: str) -> None:
    base = tiny_model(tmp_path / "base")
    with pytest.raises(ExportError, match=reason):
        exported(base, TorchFile(damage))
    assert not list(tmp_path.glob("base-export*"))


def test_rounding_beyond_the_format_is_refused(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    with pytest.raises(ExportError, match=r"model\.norm\.weight is off by 0\.1 of its norm, and the format explains"):
        exported(base, TorchFile(lambda stored: stored["model.norm.weight"].mul_(1.1), bits=8))

"""Rows with images on Megatron: the numbers of one process of the torch backend."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import pytest
from image_runs import ALL, FLAT, LORA, PACKED, RATES, assert_same_weights, image_folder, trained_on_images
from image_vectors import trained_on_vectors
from processes import on_processes, succeeded
from tiny_images import image_model

from swift.errors import UnsupportedLayout

MEGATRON = {"backend.name": "megatron"}
SAVED = {"checkpoint.save_last": True}
SETTLED = {**SAVED, "optim.eps": 1e-4}
"""For Qwen3-VL's encoder, a few of whose first gradients are 2e-7: below the usual epsilon, AdamW magnifies their
rounding. One process of torch, padded and end to end, gives 1.1e-6 then, where Megatron gives 2.8e-6; and 1.2e-7 so."""
TP2 = {"parallel.tp": 2}
SP2 = {**TP2, "parallel.sequence_parallel": True}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "data parallel": ("qwen2_5_vl", {**ALL, **RATES, **SAVED}, {"backend.overlap": True}),
    "frozen encoder": ("qwen3_vl", SAVED, {}),
    "tensor parallel": ("qwen2_5_vl", {**ALL, **SAVED}, TP2),
    "shared activations": ("qwen3_vl", {**ALL, **SETTLED}, {**SP2, "train.gradient_checkpointing": True}),
    "pipeline, features in its first layers": ("qwen3_vl", {**ALL, **SETTLED}, {"parallel.pp": 2}),
    "context parallel": ("qwen3_vl", {**ALL, **FLAT}, {"parallel.cp": 2}),
    "context parallel, padded": ("qwen2_vl", {**ALL, **SAVED}, {"parallel.cp": 2}),
    "packed": ("qwen3_vl", {**ALL, **PACKED}, TP2),
    "adapters": ("qwen3_vl", {**LORA, **ALL}, SP2),
    "adapters, frozen encoder": ("qwen2_5_vl", LORA, {"parallel.pp": 2}),
}
"""Name → model, what both runs do, and what the run on two processes does besides."""


@pytest.mark.full
def test_two_ranks_match_torch_on_images(tmp_path: Path) -> None:
    folder = image_folder(tmp_path)
    models = {kind: image_model(tmp_path / kind, kind) for kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")}
    runs = []
    for name, (kind, settings, sharded) in CASES.items():
        more = {**settings, **sharded, **MEGATRON}
        runs.append(partial(trained_on_images, models[kind], folder, f"megatron {name}", more))
    # In the third step one of two data parallel processes has no image.
    for (name, (kind, settings, _)), answers in zip(CASES.items(), on_processes(2, *runs), strict=True):
        one = trained_on_images(models[kind], folder, f"torch {name}", settings)
        two, _ = succeeded(answers)
        assert two.losses == pytest.approx(one.losses, rel=1e-5), name
        assert two.grad_norms == pytest.approx(one.grad_norms, rel=1e-4), name
        if settings.get("checkpoint.save_last"):
            assert_same_weights(one, two)


@pytest.mark.full
def test_image_embeddings_are_refused(tmp_path: Path) -> None:
    folder = image_folder(tmp_path)
    model = image_model(tmp_path / "model", "qwen2_5_vl")
    with pytest.raises(UnsupportedLayout, match="vectors by models of text alone") as refused:
        trained_on_vectors(model, folder, "vectors", MEGATRON)
    assert "--backend fsdp" in str(refused.value.hint)

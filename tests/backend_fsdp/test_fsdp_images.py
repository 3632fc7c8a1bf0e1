"""Rows with images on FSDP2: the numbers of one process of the torch backend."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from image_runs import (
    ALL,
    FLAT,
    LORA,
    RATES,
    assert_same_weights,
    image_folder,
    refused_for_mixing,
    sound_folder,
    trained_on_images,
    trained_on_sounds,
)
from image_vectors import trained_on_vectors
from mixed_media import trained_on_media
from processes import on_processes, succeeded
from tiny_images import image_model

from swift.data.batch import Batch

FSDP = {"backend.name": "fsdp"}
SAVED = {"checkpoint.save_last": True}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "shards": ("qwen2_5_vl", {**ALL, **SAVED}, {}),
    "end to end": ("qwen2_5_vl", {**ALL, **FLAT}, {}),
    "replicas": ("qwen2_5_vl", {**ALL, **RATES}, {"parallel.dp_replicate": 2, "train.gradient_checkpointing": True}),
    "tensor parallel": ("llava", ALL, {"parallel.tp": 2}),
    "adapters": ("qwen3_vl", {**LORA, **ALL}, {}),
    "frozen encoder": ("qwen3_vl", {}, {}),
    "ulysses, end to end": ("qwen2_5_vl", {**ALL, **FLAT, "train.neftune_alpha": 5.0}, {"parallel.ulysses": 2}),
    "ulysses, adapters": ("llava", {**LORA, **ALL}, {"parallel.ulysses": 2}),
    "context parallel": ("qwen3_vl", ALL, {"parallel.cp": 2}),
}
"""Name → model, what both runs do, and what the run on two processes does besides."""
TOGETHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "shards": (ALL, {}),
    "ulysses, end to end": ({**ALL, **FLAT}, {"parallel.ulysses": 2}),
}
"""The same of a model that reads images and hears sounds."""


@pytest.mark.full
def test_two_ranks_match_torch_on_images(tmp_path: Path) -> None:
    folder = image_folder(tmp_path)
    models = {kind: image_model(tmp_path / kind, kind) for kind in ("llava", "qwen2_5_vl", "qwen3_vl")}
    runs = []
    for name, (kind, settings, sharded) in CASES.items():
        more = {**settings, **sharded, **FSDP}
        runs.append(partial(trained_on_images, models[kind], folder, f"fsdp {name}", more))
    runs.append(partial(refused_for_mixing, models["qwen2_5_vl"], folder, "mixed", FSDP))
    hears = image_model(tmp_path / "qwen2_audio", "qwen2_audio")
    sound_folder(folder)
    runs.append(partial(trained_on_sounds, hears, folder, "fsdp sounds", {**ALL, **FSDP}))
    omni = image_model(tmp_path / "omni", "qwen2_5_omni_thinker")
    for name, (settings, sharded) in TOGETHER.items():
        runs.append(partial(trained_on_media, omni, folder, f"fsdp both {name}", {**settings, **sharded, **FSDP}))
    found = on_processes(2, *runs)
    *done, mixed, heard = found[: -len(TOGETHER)]
    assert all("different results when samples with images are packed" in str(answer) for answer in mixed)
    # In the third step one of the two processes has no image.
    for (name, (kind, settings, _)), answers in zip(CASES.items(), done, strict=True):
        one = trained_on_images(models[kind], folder, f"torch {name}", settings)
        two, _ = succeeded(answers)
        assert two.losses == pytest.approx(one.losses, rel=1e-5), name
        assert two.grad_norms == pytest.approx(one.grad_norms, rel=1e-4), name
        if settings.get("checkpoint.save_last"):
            assert_same_weights(one, two)
    one, (two, _) = trained_on_sounds(hears, folder, "torch sounds", ALL), succeeded(heard)
    assert two.losses == pytest.approx(one.losses, rel=1e-5)
    assert two.grad_norms == pytest.approx(one.grad_norms, rel=1e-4)
    # In the second step one of the two processes has sounds alone, and the other images alone.
    for (name, (settings, _)), both in zip(TOGETHER.items(), found[-len(TOGETHER) :], strict=True):
        one, (two, _) = trained_on_media(omni, folder, f"torch both {name}", settings), succeeded(both)
        assert two.losses == pytest.approx(one.losses, rel=1e-5), name
        assert two.grad_norms == pytest.approx(one.grad_norms, rel=1e-4), name


@pytest.mark.full
def test_two_ranks_match_torch_on_image_embeddings(tmp_path: Path) -> None:
    folder = image_folder(tmp_path)
    models = {kind: image_model(tmp_path / kind, kind) for kind in ("qwen2_5_vl", "qwen3_vl")}
    cases: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "shards": ("qwen2_5_vl", {"train.micro_batch": 2}, {}),
        "ulysses": ("qwen3_vl", FLAT, {"parallel.ulysses": 2}),
    }
    runs = [
        partial(trained_on_vectors, models[kind], folder, f"fsdp {name}", {**settings, **sharded, **FSDP})
        for name, (kind, settings, sharded) in cases.items()
    ]
    for (name, (kind, settings, _)), answers in zip(cases.items(), on_processes(2, *runs), strict=True):
        one = trained_on_vectors(models[kind], folder, f"torch {name}", settings)
        two, _ = succeeded(answers)
        assert two.losses == pytest.approx(one.losses, rel=1e-5), name
        assert two.grad_norms == pytest.approx(one.grad_norms, rel=1e-4), name


@pytest.mark.full
def test_run_ends_without_dummy_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dummy images, the run ends instead of learning something else."""
    folder, model = image_folder(tmp_path), image_model(tmp_path / "model", "llava")
    monkeypatch.setattr(Batch, "_lacks_media", lambda *_: False)
    (answers,) = on_processes(2, partial(trained_on_images, model, folder, "none", {**ALL, **FSDP}), fresh=True)
    assert not any(hasattr(answer, "losses") for answer in answers)

"""Rows with images on DeepSpeed: the numbers of one process of the torch backend."""

from __future__ import annotations

import re
from datetime import timedelta
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

from swift.contracts import Run
from swift.data.batch import Batch
from swift_testing import crew

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("deepspeed_on_cpu")]

SAVED = {"checkpoint.save_last": True}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "zero3": ("qwen2_5_vl", {**ALL, **SAVED}, {}),
    "zero3, end to end": ("llava", {**ALL, **FLAT}, {}),
    "zero3, frozen encoder": ("qwen3_vl", {}, {}),
    "zero3, adapters": ("qwen3_vl", {**LORA, **ALL}, {}),
    "zero2": ("qwen2_5_vl", {**ALL, **FLAT, **RATES}, {}),
    "zero2, tensor parallel": ("llava", ALL, {"parallel.tp": 2}),
    "zero3, ulysses": ("qwen3_vl", ALL, {"parallel.ulysses": 2}),
    "zero0": ("qwen2_5_vl", ALL, {}),
}
"""ZeRO stage and more → model, what both runs do, and what the run on two processes does besides."""
TOGETHER: dict[str, dict[str, Any]] = {"zero2": ALL, "zero3": {**ALL, **FLAT}}
"""ZeRO stage → what a model does that reads images and hears sounds."""
SECONDS = 4.0
"""In which nothing moves."""


def test_two_ranks_match_torch_on_images(tmp_path: Path) -> None:
    folder = image_folder(tmp_path)
    models = {kind: image_model(tmp_path / kind, kind) for kind in ("llava", "qwen2_5_vl", "qwen3_vl")}
    runs = []
    for name, (kind, settings, sharded) in CASES.items():
        stage = {"backend.name": "deepspeed", "backend.config": name.partition(",")[0]}
        runs.append(partial(trained_on_images, models[kind], folder, f"ds {name}", {**settings, **sharded, **stage}))
    zero3 = {"backend.name": "deepspeed", "backend.config": "zero3"}
    runs.append(partial(refused_for_mixing, models["qwen2_5_vl"], folder, "mixed", zero3))
    hears = image_model(tmp_path / "qwen2_audio", "qwen2_audio")
    sound_folder(folder)
    runs.append(partial(trained_on_sounds, hears, folder, "zero3 sounds", {**ALL, **zero3}))
    omni = image_model(tmp_path / "omni", "qwen2_5_omni_thinker")
    for stage, settings in TOGETHER.items():
        more = {**settings, "backend.name": "deepspeed", "backend.config": stage}
        runs.append(partial(trained_on_media, omni, folder, f"{stage} both", more))
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
    for (stage, settings), both in zip(TOGETHER.items(), found[-len(TOGETHER) :], strict=True):
        one, (two, _) = trained_on_media(omni, folder, f"torch both {stage}", settings), succeeded(both)
        assert two.losses == pytest.approx(one.losses, rel=1e-5), stage
        assert two.grad_norms == pytest.approx(one.grad_norms, rel=1e-4), stage


def test_two_ranks_match_torch_on_image_embeddings(tmp_path: Path) -> None:
    folder = image_folder(tmp_path)
    model = image_model(tmp_path / "model", "qwen2_5_vl")
    cases: dict[str, dict[str, Any]] = {"zero3": {"train.micro_batch": 2}, "zero2": FLAT}
    runs = [
        partial(
            trained_on_vectors, model, folder, f"ds {stage}",
            {**settings, "backend.name": "deepspeed", "backend.config": stage},
        )
        for stage, settings in cases.items()
    ]  # fmt: skip
    for (stage, settings), answers in zip(cases.items(), on_processes(2, *runs), strict=True):
        one = trained_on_vectors(model, folder, f"torch {stage}", settings)
        two, _ = succeeded(answers)
        assert two.losses == pytest.approx(one.losses, rel=1e-5), stage
        assert two.grad_norms == pytest.approx(one.grad_norms, rel=1e-4), stage


def test_watchdog_names_both_ranks_without_dummy_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without dummy images, the watchdog names both processes and what each waits for."""
    monkeypatch.setattr(crew, "GRACE", 3.0)
    monkeypatch.setattr(Batch, "_lacks_media", lambda *_: False)
    # On a busy machine the second process may come to its wait so late that gloo's own patience with the first, half as
    # long again as the watchdog's, is over before the watchdog's is.
    monkeypatch.setattr(Run, "timeout", timedelta(minutes=2))
    folder, model = image_folder(tmp_path), image_model(tmp_path / "model", "llava")
    stage = {"backend.name": "deepspeed", "backend.config": "zero3", "train.timeout_minutes": SECONDS / 60}
    capfd.readouterr()
    (answers,) = on_processes(2, partial(trained_on_images, model, folder, "none", {**ALL, **stage}), fresh=True)
    assert not any(hasattr(answer, "losses") for answer in answers)
    said = capfd.readouterr().err
    assert "Error: The run makes no progress" in said, (said[-3000:], answers)
    error = said[said.index("Error: The run makes no progress") :]
    assert f"nothing has happened for {SECONDS:g} seconds" in error
    waits = dict(re.findall(r"process (\d): at step \d, waiting for (\w+ of .+?), group", error))
    assert waits.keys() == {"0", "1"}
    # One gathers weights of the encoder; the other has none to call it for, and is elsewhere.
    assert waits["0"] != waits["1"]

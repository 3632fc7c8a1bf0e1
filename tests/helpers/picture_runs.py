"""Short runs on rows with pictures, by models of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_pictures import picture_files, sound_files
from tiny_runs import Trained, run_training
from transformers import AutoModelForImageTextToText

from swift.errors import ModelError
from swift.models.media import TowerReader

SIZES = [(56, 56), (84, 56), (56, 112), (90, 61)]
HELD: list[list[int]] = [[0, 1], [], [2], [3], [1], [0], [], [], [], [], [], [1]]
"""The pictures of each row. With four rows a step and two processes, the first of them has none in the third step."""
SOUNDS: list[list[int]] = [[0, 1], [], [2], [1], [1], [0], [], [], [], [], [], [1]]
"""The same for sounds."""
STEPS = 3
SETTINGS: dict[str, Any] = {
    "train.max_steps": STEPS, "train.global_batch": 4, "train.micro_batch": 2, "optim.weight_decay": 0.0,
    "optim.schedule": "constant", "optim.warmup_steps": 0, "optim.max_grad_norm": 0.0, "optim.eps": 1e-6,
}  # fmt: skip
ALL = {"tuner.freeze_vit": False, "tuner.freeze_aligner": False}
RATES = {"optim.vit_lr": 2e-4, "optim.aligner_lr": 3e-3}
FLAT = {"data.padding_free": True}
PACKED = {"data.packing": True, "data.max_length": 200, "train.global_batch": 2, "train.micro_batch": 1}
LORA = {"tuner.kind": "lora", "tuner.dropout": 0.0, "tuner.init": "orthogonal"}


def picture_folder(folder: Path) -> Path:
    """Write the pictures of the rows into a folder."""
    picture_files(folder, SIZES)
    return folder


def picture_rows() -> list[dict[str, Any]]:
    """Return rows of which some have several pictures, and some none."""
    made = []
    for number, held in enumerate(HELD):
        messages = [
            {"role": "user", "content": f"{'<image>' * len(held)}What is {number}?"},
            {"role": "assistant", "content": "red " * (1 + number % 3)},
        ]
        made.append({"messages": messages, "images": [f"{each}.png" for each in held]})
    return made


def trained_on_pictures(model: Path, folder: Path, name: str, settings: dict[str, Any], **more: Any) -> Trained:
    """Train on the rows with the settings of these tests and some more."""
    paths = {"data.media_root": str(folder), "data.cache": str(folder / "cache")}
    return run_training(
        model, folder / "runs", picture_rows(), {**SETTINGS, **paths, **settings, "logging.run_name": name}, **more
    )


def sound_folder(folder: Path) -> Path:
    """Write the sounds of the rows into a folder."""
    sound_files(folder, [0.4, 0.9, 1.7], rate=16000)
    return folder


def sound_rows() -> list[dict[str, Any]]:
    """Return rows of which some have several sounds, and some none."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"{'<audio>' * len(held)}What is {number}?"},
                {"role": "assistant", "content": "low " * (1 + number % 3)},
            ],
            "audios": [f"{each}.wav" for each in held],
        }
        for number, held in enumerate(SOUNDS)
    ]


def trained_on_sounds(model: Path, folder: Path, name: str, settings: dict[str, Any]) -> Trained:
    """Train on the rows with sounds."""
    paths = {"data.media_root": str(folder), "data.cache": str(folder / "cache")}
    return run_training(
        model, folder / "runs", sound_rows(), {**SETTINGS, **paths, **settings, "logging.run_name": name}
    )


def refused_for_mixing(model: Path, folder: Path, name: str, settings: dict[str, Any]) -> str:
    """Train a model whose samples mix when they lie end to end; return the error, '' where there is none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TowerReader, "_positions", lambda *_: None)
        try:
            trained_on_pictures(model, folder, name, {**settings, **FLAT, "train.max_steps": 1})
        except ModelError as error:
            return str(error)
    return ""


def assert_same_weights(one: Trained, other: Trained) -> None:
    """Compare the last checkpoints of two runs as transformers loads them."""
    left, right = (
        AutoModelForImageTextToText.from_pretrained(run.summary.last_checkpoint, dtype=torch.float32)
        for run in (one, other)
    )
    expected = dict(left.named_parameters())
    for name, parameter in right.named_parameters():
        torch.testing.assert_close(parameter, expected.pop(name), atol=1e-6, rtol=1e-4)
    assert not expected

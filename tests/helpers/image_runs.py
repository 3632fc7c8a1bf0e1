"""Short runs on rows with images, by models of random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tiny_images import image_files, sound_files
from tiny_runs import Trained, run_training
from transformers import AutoModelForImageTextToText

from swift.errors import ModelError
from swift.models.media import ProcessorReader

SIZES = [(56, 56), (84, 56), (56, 112), (90, 61)]
HELD: list[list[int]] = [[0, 1], [], [2], [3], [1], [0], [], [], [], [], [], [1]]
"""The images of each row. With four rows a step and two processes, the first of them has none in the third step."""
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


def image_folder(folder: Path) -> Path:
    """Write the images of the rows into a folder."""
    image_files(folder, SIZES)
    return folder


def image_rows() -> list[dict[str, Any]]:
    """Return rows of which some have several images, and some none."""
    made = []
    for number, held in enumerate(HELD):
        messages = [
            {"role": "user", "content": f"{'<image>' * len(held)}What is {number}?"},
            {"role": "assistant", "content": "red " * (1 + number % 3)},
        ]
        made.append({"messages": messages, "images": [f"{each}.png" for each in held]})
    return made


def trained_on_images(model: Path, folder: Path, name: str, settings: dict[str, Any], **more: Any) -> Trained:
    """Train on the rows with the settings of these tests and some more."""
    paths = {"data.media_root": str(folder), "data.cache": str(folder / "cache")}
    return run_training(
        model, folder / "runs", image_rows(), {**SETTINGS, **paths, **settings, "logging.run_name": name}, **more
    )


def plainly_trained(
    processor: Any, model_folder: Path, folder: Path, taught: str, rate_of: Callable[[str], float] = lambda _: 1e-3
) -> tuple[list[float], list[float]]:
    """Return losses and gradient norms of a loop over the rows, each of which is asked of the model alone."""
    model: Any = AutoModelForImageTextToText.from_pretrained(model_folder, dtype=torch.float32)
    named = [(name, parameter) for name, parameter in model.named_parameters() if _is_taught(name, taught)]
    chosen = [parameter for _, parameter in named]
    groups = [{"params": [parameter], "lr": rate_of(name)} for name, parameter in named]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.0)
    losses, norms = [], []
    for step in range(STEPS):
        sums, count = torch.zeros(()), 0
        for number in range(4 * step, 4 * step + 4):
            content = [*({"type": "image"} for _ in HELD[number]), {"type": "text", "text": f"What is {number}?"}]
            messages = [{"role": "user", "content": content}]
            prompt = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            images = [Image.open(folder / f"{each}.png") for each in HELD[number]] or None
            text = [f"{prompt}{'red ' * (1 + number % 3)}<|im_end|>\n"]
            inputs = processor(text=text, images=images, return_tensors="pt", add_special_tokens=False)
            ids = inputs["input_ids"][0]
            learned = len(processor.tokenizer("red " * (1 + number % 3), add_special_tokens=False)["input_ids"]) + 1
            logps = model(**inputs).logits[0].log_softmax(-1)
            at = range(len(ids) - 1 - learned, len(ids) - 1)
            sums = sums - sum(logps[place - 1, ids[place]] for place in at)
            count += learned
        loss = sums / count
        loss.backward()
        for parameter in chosen:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        norms.append(float(torch.stack([each.grad.norm() for each in chosen if each.grad is not None]).norm()))
        optimizer.step()
        model.zero_grad(set_to_none=True)
        losses.append(float(loss))
    return losses, norms


def _is_taught(name: str, taught: str) -> bool:
    return taught == "all" or not ("visual" in name or "vision" in name or "projector" in name)


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
        patch.setattr(ProcessorReader, "_positions", lambda *_: None)
        try:
            trained_on_images(model, folder, name, {**settings, **FLAT, "train.max_steps": 1})
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

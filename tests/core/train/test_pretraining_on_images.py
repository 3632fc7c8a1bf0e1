"""Plain texts in which images and videos stand, learned as by plain transformers, on one process and on two."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from image_runs import ALL, FLAT, SETTINGS, image_folder
from processes import on_processes, succeeded
from tiny_images import image_model, processor_of
from tiny_runs import Trained, run_training
from transformers import AutoModelForImageTextToText

PLACE = "<|vision_start|><|image_pad|><|vision_end|>"
ROWS: list[tuple[dict[str, Any], str, list[int]]] = [
    ({"text": "A cat: <image>", "images": ["0.png"]}, f"A cat: {PLACE}", [0]),
    ({"text": "It falls: <video>", "videos": [["1.png", "2.png"]]}, f"It falls: {PLACE}{PLACE}", [1, 2]),
    (
        {"text": "<image>, then <video>!", "images": ["3.png"], "videos": [["0.png", "1.png"]]},
        f"{PLACE}, then {PLACE}{PLACE}!",
        [3, 0, 1],
    ),
    ({"text": "words alone"}, "words alone", []),
    ({"text": "A dog: <image>", "images": ["1.png"]}, f"A dog: {PLACE}", [1]),
    ({"text": "<video> moves", "videos": [["2.png"]]}, f"{PLACE} moves", [2]),
    ({"text": "no image"}, "no image", []),
    ({"text": "none here"}, "none here", []),
]
"""Rows, what the model reads of them, and the images in it. On two processes, one has none in the second step."""


def trained(model: Path, folder: Path, name: str, layout: dict[str, Any]) -> Trained:
    paths = {"data.media_root": str(folder), "data.cache": str(folder / "cache"), "logging.run_name": name}
    settings = {**SETTINGS, **ALL, **paths, **layout, "objective.name": "pt", "train.max_steps": 2}
    return run_training(model, folder / "runs", [row for row, _, _ in ROWS], settings)


def plain(path: Path, folder: Path) -> tuple[list[float], list[float]]:
    from PIL import Image

    processor = processor_of("qwen2_5_vl")
    model: Any = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, (0.9, 0.95), eps=1e-6, weight_decay=0.0)
    losses, norms = [], []
    for step in range(2):
        model.zero_grad()
        sums, count = torch.zeros(()), 0
        for _, text, held in ROWS[4 * step : 4 * step + 4]:
            images = [Image.open(folder / f"{number}.png") for number in held] or None
            inputs = processor(text=[f"{text}<|im_end|>"], images=images, return_tensors="pt", add_special_tokens=False)
            ids = inputs["input_ids"][0]
            logps = model(**inputs, use_cache=False).logits[0].log_softmax(-1)
            counts = ids[1:] != model.config.image_token_id
            sums = sums - (logps[:-1].gather(1, ids[1:, None])[:, 0] * counts).sum()
            count += int(counts.sum())
        loss = sums / count
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


@pytest.mark.full
def test_image_and_video_pretraining_matches_transformers(tmp_path: Path) -> None:
    """Texts with images and videos are learned as by plain transformers."""
    folder = image_folder(tmp_path)
    model = image_model(tmp_path / "model", "qwen2_5_vl")
    losses, norms = plain(model, folder)
    two = [partial(trained, model, folder, f"two-{len(layout)}", layout) for layout in ({}, FLAT)]
    (padded, _), (flat, _) = (succeeded(answers) for answers in on_processes(2, *two))
    for run in (trained(model, folder, "one", {}), padded, flat):
        assert run.losses == pytest.approx(losses, rel=1e-5)
        assert run.grad_norms == pytest.approx(norms, rel=1e-4)

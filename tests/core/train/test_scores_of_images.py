"""Scores of answers about images: rewards, steps and classes, beside plain transformers with a linear head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from image_runs import ALL, FLAT, SETTINGS, STEPS, image_folder
from tiny_images import image_model, processor_of
from tiny_runs import Trained, run_training
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid
from transformers import AutoModelForImageTextToText

from swift.models.heads import initial_head

Score = Callable[[int, str], torch.Tensor]
"""The scores after every token of an answer to the question about one image."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: image_model(tmp_path_factory.mktemp(kind), kind) for kind in ("llava", "qwen2_5_vl")}


def asked(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"<image>Is it {number}?"}


def trained(model: Path, folder: Path, rows: list[dict[str, Any]], changes: dict[str, Any]) -> Trained:
    paths = {"data.media_root": str(folder), "data.cache": str(folder / "cache"), "model.path": str(model)}
    return run_training(model, folder / "runs", rows, {**SETTINGS, **ALL, **paths, **changes})


def plain(kind: str, model: Path, folder: Path, labels: int, loss: Callable[[Score], torch.Tensor]) -> list[float]:
    """Losses of a loop in which the language model's head is a linear one, and every answer is asked alone."""
    from PIL import Image

    processor = processor_of(kind)
    whole: Any = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32)
    trunk = whole.base_model
    head = torch.nn.Parameter(initial_head((labels, 32), seed=42))

    def score(number: int, text: str) -> torch.Tensor:
        said = [{"type": "image"}, {"type": "text", "text": f"Is it {number}?"}]
        prompt = processor.apply_chat_template(
            [{"role": "user", "content": said}], tokenize=False, add_generation_prompt=bool(text)
        )
        images = [Image.open(folder / f"{number}.png")]
        inputs = processor(text=[f"{prompt}{text}"], images=images, return_tensors="pt", add_special_tokens=False)
        scores: torch.Tensor = trunk(**inputs, use_cache=False).last_hidden_state[0] @ head.T
        return scores

    optimizer = torch.optim.AdamW([*trunk.parameters(), head], 1e-3, (0.9, 0.95), eps=1e-6, weight_decay=0.0)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        made = loss(score)
        made.backward()
        optimizer.step()
        losses.append(made.item())
    return losses


@pytest.mark.full
@pytest.mark.parametrize(("kind", "layout"), [("qwen2_5_vl", FLAT), ("llava", {})])
def test_image_rewards_match_transformers(
    models: dict[str, Path], folder: Path, kind: str, layout: dict[str, Any]
) -> None:
    """Rewards of completions about images are learned as by plain transformers."""
    rows = [
        {
            "messages": [asked(number), {"role": "assistant", "content": "yes, it is"}],
            "rejected_response": "no",
            "images": [f"{number}.png"],
        }
        for number in range(4)
    ]
    task = {"objective.name": "rm", "model.task": "reward", "logging.run_name": f"rm-{kind}", **layout}
    run = trained(models[kind], folder, rows, {**task, "export.to": "hf"})

    def loss(score: Score) -> torch.Tensor:
        gaps = [score(each, "yes, it is<|im_end|>\n")[-1] - score(each, "no<|im_end|>\n")[-1] for each in range(4)]
        return -logsigmoid(torch.stack(gaps)).mean()

    assert run.losses == pytest.approx(plain(kind, models[kind], folder, 1, loss), rel=1e-4)


@pytest.mark.full
def test_image_step_rewards_match_transformers(models: dict[str, Path], folder: Path) -> None:
    """Steps of completions about images are marked as by plain transformers."""
    rows = [
        {"messages": [asked(each)], "completions": ["red", "so no"], "labels": [True, False], "images": [f"{each}.png"]}
        for each in range(4)
    ]
    task = {"objective.name": "prm", "model.task": "reward", "logging.run_name": "prm"}
    run = trained(models["qwen2_5_vl"], folder, rows, task)

    def loss(score: Score) -> torch.Tensor:
        marks = []
        for each in range(4):
            scores = score(each, "red\nso no\n")[:, 0]
            marks += [scores[-len("so no\n") - 1], scores[-1]]
        return binary_cross_entropy_with_logits(torch.stack(marks), torch.tensor([1.0, 0.0] * 4))

    assert run.losses == pytest.approx(plain("qwen2_5_vl", models["qwen2_5_vl"], folder, 1, loss), rel=1e-4)


@pytest.mark.full
def test_image_classification_matches_transformers(models: dict[str, Path], folder: Path) -> None:
    rows = [{"messages": [asked(each)], "label": each % 3, "images": [f"{each}.png"]} for each in range(4)]
    task = {"objective.name": "seq_cls", "model.task": "seq_cls", "model.num_labels": 3, "logging.run_name": "classes"}
    run = trained(models["llava"], folder, rows, task)

    def loss(score: Score) -> torch.Tensor:
        return cross_entropy(torch.stack([score(each, "")[-1] for each in range(4)]), torch.arange(4) % 3)

    assert run.losses == pytest.approx(plain("llava", models["llava"], folder, 3, loss), rel=1e-4)

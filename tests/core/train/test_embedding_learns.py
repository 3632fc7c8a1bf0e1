"""Embeddings learn vectors that find what belongs together, with a control that has nothing to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import Trained, run_training

from swift.config.sections import ExportSection
from swift.export.run import export_checkpoint
from swift_demo.model import write_model
from swift_demo.scoring import embedding_rows


def recall_at_1(model: Path, rows: list[dict[str, str]]) -> float:
    """Return for how many of the anchors the nearest of all positives is their own, by transformers alone."""
    from transformers import AutoModel, AutoTokenizer

    reference, tokenizer = AutoModel.from_pretrained(model), AutoTokenizer.from_pretrained(model)

    def vectors(column: str) -> torch.Tensor:
        with torch.no_grad():
            states = [reference(**tokenizer(row[column], return_tensors="pt")).last_hidden_state[0, -1] for row in rows]
        return torch.nn.functional.normalize(torch.stack(states), dim=1)

    nearest = (vectors("anchor") @ vectors("positive").T).argmax(1)
    return float((nearest == torch.arange(len(rows))).float().mean())


@pytest.mark.full
def test_embeddings_learn_number_words_but_not_shuffled_pairs(tmp_path: Path) -> None:
    """Numbers in words are found by their digits and those of shuffled pairs are not."""
    model = write_model(tmp_path / "demo")
    common = {
        "objective.name": "embedding", "objective.temperature": 0.05, "train.global_batch": 64, "data.shuffle": True,
        "optim.lr": 2e-3, "optim.schedule": "constant", "optim.warmup_steps": 10,
    }  # fmt: skip
    steps = {"train.max_steps": 40, "train.eval_steps": 40, "train.eval_batch": 100}

    def learned(micro: int, changes: dict[str, Any], *, random_labels: bool = False) -> Trained:
        rows, held_out = embedding_rows(random_labels=random_labels)
        name = f"{micro}-{random_labels}"
        settings = {**common, **changes, "train.micro_batch": micro, "logging.run_name": name}
        return run_training(
            model, tmp_path, rows, settings, validation=held_out if "train.eval_steps" in changes else None
        )

    accumulated = learned(8, {**steps, "checkpoint.save_last": True})
    whole = learned(64, {**steps, "train.max_steps": 5})
    assert accumulated.losses[:5] == pytest.approx(whole.losses, rel=1e-4)
    assert accumulated.grad_norms[:5] == pytest.approx(whole.grad_norms, rel=1e-3)
    export_checkpoint(
        accumulated.summary.last_checkpoint,
        to="hf",
        options=ExportSection(out=tmp_path / "exported"),
        say=lambda _: None,
    )
    held_out = embedding_rows()[1]
    assert recall_at_1(tmp_path / "exported", held_out) >= 0.95
    assert recall_at_1(model, held_out) < 0.1
    assert accumulated.lines[40]["eval_recall_at_1"] >= 0.95
    assert learned(8, steps, random_labels=True).lines[40]["eval_recall_at_1"] < 0.1

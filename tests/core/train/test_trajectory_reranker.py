"""Rerankers in training, against transformers' models and plain losses, one document at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import plain_torch
import pytest
import torch
from plain_torch import PlainTrainer, batches_of
from tiny_runs import run_training
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import AutoModelForSequenceClassification, AutoTokenizer

STEPS = 5
ROWS: list[dict[str, Any]] = [
    {
        "query": str(n),
        "positive": [f"{n}!"] * (1 + n % 2),
        "negative": [f"{n + k}{'?' * k}" for k in range(1, 2 + n % 3)],
    }
    for n in range(10)
]
Score = Callable[[torch.nn.Module, dict[str, Any], str], torch.Tensor]


@pytest.fixture(scope="module")
def headed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("headed") / "tiny"
    AutoModelForSequenceClassification.from_pretrained(tiny, num_labels=1, pad_token_id=256).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)
    return folder


def head_score(folder: Path) -> Score:
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def score(model: torch.nn.Module, row: dict[str, Any], document: str) -> torch.Tensor:
        ids = tokenizer(f"<Query>: {row['query']}\n<Document>: {document}<|im_end|>", return_tensors="pt").input_ids
        return model(ids).logits[0, 0]

    return score


def answer_score(folder: Path) -> Score:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    yes, no = (tokenizer.convert_tokens_to_ids(text) for text in "yn")

    def score(model: torch.nn.Module, row: dict[str, Any], document: str) -> torch.Tensor:
        asked = f"<Instruct>: find\n<Query>: {row['query']}\n<Document>: {document}"
        messages = [{"role": "system", "content": "Judge."}, {"role": "user", "content": asked}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        logits = model(tokenizer(text, return_tensors="pt").input_ids).logits[0, -1]
        return logits[yes] - logits[no]

    return score


def pointwise(model: torch.nn.Module, batch: Any, score: Score) -> torch.Tensor:
    """A mean over all documents of the batch."""
    scores, labels = [], []
    for row in batch:
        scores += [score(model, row, document) for document in row["positive"] + row["negative"]]
        labels += [1.0] * len(row["positive"]) + [0.0] * len(row["negative"])
    return binary_cross_entropy_with_logits(torch.stack(scores), torch.tensor(labels))


def listwise(model: torch.nn.Module, batch: Any, score: Score) -> torch.Tensor:
    """A mean over right documents, each among the wrong ones of its query."""
    losses = []
    for row in batch:
        scores = torch.stack([score(model, row, document) for document in [row["positive"][0], *row["negative"]]])
        losses.append(cross_entropy(scores[None] / 0.7, torch.tensor([0])))
    return torch.stack(losses).mean()


def check(trained: Any, model: torch.nn.Module, rows: Any, loss: Callable[..., torch.Tensor], score: Score) -> None:
    trainer = PlainTrainer(model, steps=STEPS, lr=1e-3)
    expected = [trainer.step(loss(model, batch, score)) for batch in batches_of(rows, 4, STEPS)]
    assert abs(expected[-1][0] - expected[0][0]) > 0.02, "the reference learned nothing"
    assert trained.losses == pytest.approx([value for value, _ in expected], rel=1e-5)
    # After a few updates some processors round norms otherwise by 1.3e-5.
    assert trained.grad_norms == pytest.approx([norm for _, norm in expected], rel=1e-4)


COMMON = {"train.max_steps": STEPS, "train.micro_batch": 2, "train.accumulation": 2}


@pytest.mark.parametrize("flat", [False, True], ids=["padded", "padding-free"])
def test_pointwise_reranker_matches_transformers_bce(headed: Path, tmp_path: Path, flat: bool) -> None:
    """A pointwise reranker is transformers with binary cross-entropy."""
    trained = run_training(headed, tmp_path, ROWS, {**COMMON, "objective.name": "reranker", "data.padding_free": flat})
    model = AutoModelForSequenceClassification.from_pretrained(headed, dtype=torch.float32, attn_implementation="eager")
    check(trained, model, ROWS, pointwise, head_score(headed))


def test_listwise_generative_reranker_matches_cross_entropy(tiny: Path, tmp_path: Path) -> None:
    """A listwise generative reranker is cross-entropy over what yes leads no by."""
    rows = [{**row, "positive": row["positive"][:1]} for row in ROWS]
    options = {
        "loss": "listwise",
        "temperature": 0.7,
        "positive_token": "y",
        "negative_token": "n",
        "instruction": "find",
    }
    settings = {**COMMON, "data.system": "Judge.", "objective.name": "generative_reranker"}
    settings |= {f"objective.{key}": value for key, value in options.items()}
    trained = run_training(tiny, tmp_path, rows, settings)
    check(trained, plain_torch.load_model(tiny), rows, listwise, answer_score(tiny))

"""Process reward models in training, against transformers' classifier of tokens on rows made as TRL makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_torch import PlainTrainer, batches_of
from tiny_runs import run_training
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

from swift.config.sections import DataSection
from swift.data.conversation import Unusable
from swift.data.encode import SampleEncoder
from swift.errors import SwiftError
from swift.models.heads import initial_head
from swift.terminal import say_nothing
from swift_infer import open_step_scorer
from swift_infer.chat_engine import find_model
from swift_infer.options import ModelOptions
from swift_objectives.encodings.steps import StepEncoding

STEPS = 5
ROWS = [
    {
        "prompt": f"What is {number} + {number}?",
        "completions": [f"{number} twice"] * (1 + number % 3) + [f"It is {2 * number}."],
        "labels": [True] * (1 + number % 3) + [number % 2 == 0],
    }
    for number in range(10)
]
IGNORED = -100


def tokens_and_labels(tokenizer: Any, row: dict[str, Any], *, separator: str = "\n") -> tuple[list[int], list[int]]:
    """What TRL's `PRMTrainer.tokenize_row` makes of a row, with a conversation instead of its plain prompt."""
    asked = [{"role": "user", "content": row["prompt"]}]
    ids = list(tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"])
    labels = [IGNORED] * len(ids)
    for step, label in zip(row["completions"], row["labels"], strict=True):
        added = [
            *tokenizer(step, add_special_tokens=False)["input_ids"],
            *tokenizer(separator, add_special_tokens=False)["input_ids"],
        ]
        ids += added
        labels += [IGNORED] * (len(added) - 1) + [int(label)]
    return ids, labels


def classifier(folder: Path) -> torch.nn.Module:
    """Transformers' model of two labels per token, of which the second begins as a head of ours, the first at zero."""
    model = AutoModelForTokenClassification.from_pretrained(folder, num_labels=2, dtype=torch.float32)
    with torch.no_grad():
        model.score.weight.zero_()
        model.score.weight[1] = initial_head((1, model.config.hidden_size), seed=42)[0]
        model.score.bias.zero_()
    model.score.bias.requires_grad_(False)
    model.score.weight.register_hook(lambda gradient: gradient * torch.tensor([[0.0], [1.0]]))
    return model


@pytest.mark.parametrize("layout", [{}, {"data.packing": True, "data.max_length": 256, "data.padding_free": True}])
def test_a_step_learns_what_transformers_token_classifier_learns(
    tied: Path, tmp_path: Path, layout: dict[str, Any]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tied)

    def loss(model: torch.nn.Module, rows: Sequence[dict[str, Any]]) -> torch.Tensor:
        total, steps = torch.zeros(()), 0
        for ids, labels in (tokens_and_labels(tokenizer, row) for row in rows):
            total = total + cross_entropy(
                model(torch.tensor([ids])).logits[0], torch.tensor(labels), ignore_index=IGNORED, reduction="sum"
            )
            steps += sum(label != IGNORED for label in labels)
        return total / steps

    settings = {"objective.name": "prm", "train.max_steps": STEPS, "train.global_batch": 4, "train.micro_batch": 2}
    model = classifier(tied)
    trainer = PlainTrainer(model, steps=STEPS, lr=1e-3)
    rows = ROWS[:4] if layout else ROWS  # one pack, which every step learns
    expected = [trainer.step(loss(model, batch)) for batch in batches_of(rows, 4, STEPS)]
    if layout:
        settings |= {"train.global_batch": 1, "train.micro_batch": 1}
    run = run_training(tied, tmp_path, rows, settings | layout)
    assert run.losses == pytest.approx([value for value, _ in expected], rel=1e-5)
    assert run.grad_norms == pytest.approx([norm for _, norm in expected], rel=1e-5)


def encoded(tokenizer: Any, row: dict[str, Any], encoding: StepEncoding, **section: Any) -> Any:
    encoder = SampleEncoder(tokenizer, DataSection(**section), encoding)
    return encoder.encode(encoding.understand(row, "row 1"), "row 1").samples[0].segments[0]


def test_marks_stand_behind_the_separators_of_the_steps(tied: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tied)
    row = {**ROWS[5], "labels": [True, 0.25, 1, False]}
    for separator in ("\n", " ки\n"):
        ids, labels = tokens_and_labels(tokenizer, {**row, "labels": [1] * 4}, separator=separator)
        segment = encoded(tokenizer, row, StepEncoding(separator))
        assert segment.input_ids.tolist() == [*ids, tokenizer.eos_token_id]
        marked = np.flatnonzero(segment.weights)
        assert (marked - 1).tolist() == [place for place, label in enumerate(labels) if label != IGNORED]
        assert segment.token_values["step_labels"][marked].tolist() == [1.0, 0.25, 1.0, 0.0]
    last = encoded(tokenizer, row, StepEncoding("\n", last_only=True))
    assert np.flatnonzero(last.weights).tolist() == [len(last) - 1]
    short = encoded(tokenizer, row, StepEncoding("\n"), max_length=len(last) - 1, truncation="right")
    assert np.count_nonzero(short.weights) == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"labels": [True]}, "4 steps, and 1 labels"),
        ({"labels": [1, -1, 1, 1]}, "the label of a step is -1"),
        ({"completions": "It is 10."}, "string that is not JSON"),
        ({"completions": ["a", "", "b", "c"]}, "step 2 is ''"),
        ({"completions": [], "labels": []}, "is empty"),
    ],
)
def test_rows_whose_steps_cannot_be_learned_are_left_out(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        StepEncoding("\n").understand({**ROWS[5], **changes}, "row 1")


def test_step_rows_in_rm_suggest_prm_objective(tied: Path, tmp_path: Path) -> None:
    """Rows of steps are refused by rm with the objective that learns them."""
    with pytest.raises(SwiftError, match="--rlhf_type prm learns"):
        run_training(tied, tmp_path, ROWS, {"objective.name": "rm"})


def test_step_scores_match_in_checkpoint_and_export(tied: Path, tmp_path: Path) -> None:
    """Steps are scored as they were learned by the checkpoint and its export."""
    settings = {"objective.name": "prm", "train.max_steps": 2, "checkpoint.save_last": True, "optim.lr": 1e-2}
    run = run_training(tied, tmp_path, ROWS, {**settings, "objective.step_separator": "\n\n"})
    checkpoint = run.summary.last_checkpoint
    assert checkpoint is not None
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()
    answers, expected = [], []
    for row in ROWS[:3]:
        ids, labels = tokens_and_labels(tokenizer, row, separator="\n\n")
        with torch.no_grad():
            said = model.score(model.model(torch.tensor([ids])).last_hidden_state)[0, :, 0].sigmoid()
        expected.append([float(said[place]) for place, label in enumerate(labels) if label != IGNORED])
        answers.append(([{"role": "user", "content": row["prompt"]}], "\n\n".join(row["completions"])))
    with pytest.raises(SwiftError, match="--step_reward min"):
        find_model(ModelOptions(model=str(checkpoint)), generates=False, say=say_nothing).check_scores_sequences()
    scorer = open_step_scorer(checkpoint)
    found = [scores.tolist() for scores in scorer.scores([*answers, (answers[0][0], " \n\n")])]
    assert found[3] == []
    for ours, theirs in zip(found, expected, strict=False):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert len({score for scores in expected for score in scores}) > 6

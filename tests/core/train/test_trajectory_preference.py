"""Preference objectives in training, against the papers' losses on a plain model and a plain copy of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import plain_torch
import pytest
import torch
from plain_torch import PlainTrainer, Tokens, batches_of, response_logp, tokens_of
from tiny_runs import pairs, run_training, verdicts
from torch.nn.functional import logsigmoid

STEPS = 6
PAIRS = pairs(10)
FP32 = 1e-5
Losses = Callable[[torch.nn.Module, Sequence[Any]], torch.Tensor]


def trajectory(model: torch.nn.Module, samples: Sequence[Any], loss: Losses, *, lr: float) -> list[tuple[float, float]]:
    trainer = PlainTrainer(model, steps=STEPS, lr=lr)
    return [trainer.step(loss(model, batch)) for batch in batches_of(samples, 4, STEPS)]


def pair_tokens(folder: Path) -> list[tuple[Tokens, Tokens]]:
    return [
        (tokens_of(folder, row["query"], row["response"]), tokens_of(folder, row["query"], row["rejected_response"]))
        for row in PAIRS
    ]


def dpo(reference: torch.nn.Module, beta: float = 0.1) -> Losses:
    """-log σ(β (log ratio of the chosen - log ratio of the rejected)), a mean over pairs."""

    def loss(model: torch.nn.Module, batch: Sequence[tuple[Tokens, Tokens]]) -> torch.Tensor:
        losses = []
        for chosen, rejected in batch:
            with torch.no_grad():
                past = response_logp(reference, chosen) - response_logp(reference, rejected)
            losses.append(-logsigmoid(beta * (response_logp(model, chosen) - response_logp(model, rejected) - past)))
        return torch.stack(losses).mean()

    return loss


def kto(reference: torch.nn.Module, beta: float = 0.1) -> Losses:
    """1 - σ(±β (log ratio - z)), where z is what the batch's mismatched completions have moved on average."""

    def ratio(model: torch.nn.Module, tokens: Tokens) -> torch.Tensor:
        with torch.no_grad():
            past = response_logp(reference, tokens)
        return response_logp(model, tokens) - past

    def loss(model: torch.nn.Module, batch: Sequence[tuple[Tokens, Tokens, bool]]) -> torch.Tensor:
        with torch.no_grad():
            moved = torch.stack([ratio(model, mismatched) for _, mismatched, _ in batch]).mean().clamp(min=0)
        signs = [1.0 if good else -1.0 for *_, good in batch]
        gains = [sign * beta * (ratio(model, own) - moved) for (own, _, _), sign in zip(batch, signs, strict=True)]
        return torch.stack([1 - torch.sigmoid(gain) for gain in gains]).mean()

    return loss


def check(trained: Any, expected: list[tuple[float, float]]) -> None:
    assert abs(expected[-1][0] - expected[0][0]) > 0.02, "the reference learned nothing"
    assert trained.losses == pytest.approx([loss for loss, _ in expected], rel=FP32)
    assert trained.grad_norms == pytest.approx([norm for _, norm in expected], rel=FP32)


COMMON = {"train.max_steps": STEPS, "train.micro_batch": 2, "train.accumulation": 2}


@pytest.mark.parametrize("flat", [False, True], ids=["padded", "padding-free"])
def test_dpo_on_all_weights_compares_with_the_model_at_the_start(tiny: Path, tmp_path: Path, flat: bool) -> None:
    trained = run_training(tiny, tmp_path, PAIRS, {**COMMON, "objective.name": "dpo", "data.padding_free": flat})
    model = plain_torch.load_model(tiny)
    check(trained, trajectory(model, pair_tokens(tiny), dpo(copy.deepcopy(model)), lr=1e-3))


def test_scores_of_the_reference_are_made_once(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = pairs(6, seed=99)
    settings = {"objective.name": "dpo", "train.max_steps": 2}
    first = run_training(tiny, tmp_path, rows, {**settings, "logging.run_name": "first"})
    assert "Scoring 6 samples with the reference model" in capsys.readouterr().out
    second = run_training(tiny, tmp_path, rows, {**settings, "logging.run_name": "second"})
    assert "Scoring" not in capsys.readouterr().out
    assert second.losses == first.losses


def test_kto_pairs_each_prompt_with_the_next_completion(tiny: Path, tmp_path: Path) -> None:
    rows = verdicts(10)
    trained = run_training(tiny, tmp_path, rows, {**COMMON, "objective.name": "kto"})
    following = [*rows[1:], rows[0]]
    samples = [
        (tokens_of(tiny, row["query"], row["response"]), tokens_of(tiny, row["query"], other["response"]), row["label"])
        for row, other in zip(rows, following, strict=True)
    ]
    model = plain_torch.load_model(tiny)
    check(trained, trajectory(model, samples, kto(copy.deepcopy(model)), lr=1e-3))

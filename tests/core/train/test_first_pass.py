"""Losses that compare all rows of a global batch: one micro-batch at a time, and all at once, against plain torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import pairs, run_training, write_model

from swift.config.sections import Section
from swift.contracts import LossSums, ModelView, Topology, World
from swift.data.batch import Batch
from swift.data.global_segments import GlobalSegments
from swift.data.samples import Encoded, Segment
from swift.processes.comms import Comms
from swift.train.first_pass import completed, is_whole
from swift.train.sums import GlobalSums
from swift_testing.objectives import TEMPERATURE, Negatives, install_objectives

PAIRS, SIZE = 5, 6


def pair(number: int, *, counts: bool = True) -> Encoded:
    tokens = [np.arange(2, 5 + number, dtype=np.int32), np.arange(3, 9, dtype=np.int32)]
    weights = [np.array([0.0, *(float(counts) for _ in each[1:])], dtype=np.float32) for each in tokens]
    return Encoded(number, tuple(Segment(*each) for each in zip(tokens, weights, strict=True)))


def batch_of(micro_rows: int, *, dummy: int | None = None) -> Batch:
    rows = [(pair(number, counts=number != dummy),) for number in range(PAIRS)]
    return Batch(
        step=0, rows=rows, first_row=0, micro_rows=micro_rows, weight=float(PAIRS), global_rows=PAIRS, tokens=1,
        flat=False, seed=0,
    )  # fmt: skip


def whole_pair() -> Batch:
    return replace(batch_of(1), rows=[(pair(0),)])


def passes(batch: Batch, vectors: torch.Tensor) -> GlobalSums:
    """Back-propagate every micro-batch of a batch whose vectors these are."""
    objective, sums, at = Negatives(Section()), GlobalSums("cpu"), 0
    for micro_batch in batch.micro_batches():
        own = vectors[at : at + micro_batch.segments]
        at += micro_batch.segments
        found: LossSums = objective.loss(ModelView(pooled=own.float()), micro_batch)
        torch.autograd.backward(found.loss)
        sums.add(found, micro_batch)
    return sums


def plain(vectors: torch.Tensor, kept: list[int]) -> torch.Tensor:
    unit = torch.nn.functional.normalize(vectors.reshape(-1, 2, SIZE)[kept], dim=-1)
    return torch.nn.functional.cross_entropy(
        unit[:, 0] @ unit[:, 1].T / TEMPERATURE, torch.arange(len(kept)), reduction="sum"
    )


@pytest.mark.parametrize("dummy", [None, 2])
@pytest.mark.parametrize("micro_rows", [1, 2, PAIRS])
def test_results_do_not_depend_on_micro_batches(micro_rows: int, dummy: int | None) -> None:
    """Gradient loss and metrics do not depend on the micro-batches."""
    start = torch.randn(2 * PAIRS, SIZE, generator=torch.Generator().manual_seed(0))
    expected, found = (start.clone().requires_grad_() for _ in range(2))
    loss = plain(expected, [number for number in range(PAIRS) if number != dummy])
    torch.autograd.backward(loss)

    batch, alone = batch_of(micro_rows, dummy=dummy), Topology(World(), 0, 1)
    assert is_whole(batch, alone) == (micro_rows == PAIRS)
    if not is_whole(batch, alone):
        batch = completed(batch, Negatives(Section()), start, alone, Comms())
    total, metrics = passes(batch, found).reduce(None)
    assert total == pytest.approx(loss.item(), rel=1e-6)
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-5, atol=1e-7)
    assert metrics["nearest"][1] == PAIRS - (dummy is not None)


def test_a_process_without_rows_adds_nothing() -> None:
    whole = replace(batch_of(2), spare_row=(pair(0),))
    values = Negatives(Section()).from_first_pass(torch.ones(2, SIZE).double(), GlobalSegments.of_slice(whole_pair()))
    nothing = replace(whole, rows=[]).with_segment_values({name: each[:0].numpy() for name, each in values.items()})
    vectors = torch.ones(2, SIZE, requires_grad=True)
    total, metrics = passes(nothing, vectors).reduce(None)
    assert total == 0
    assert metrics["nearest"] == (0.0, 0.0)
    assert vectors.grad is not None
    assert not vectors.grad.any()


def test_the_first_pass_has_the_dropout_of_the_step(tmp_path: Path) -> None:
    """Every step says how far its vectors are from those that were compared before it."""
    install_objectives()
    changes = {
        "objective.name": "kit-negatives",
        "model.task": "embedding",
        "tuner.kind": "lora",
        "tuner.dropout": 0.5,
        "optim.lr": 5e-3,
        "train.micro_batch": 2,
        "train.global_batch": 8,
        "train.max_steps": 3,
    }
    trained = run_training(write_model(tmp_path / "model"), tmp_path / "out", pairs(12), changes)
    assert [line["drift"] for line in trained.lines.values()] == [0.0] * 3

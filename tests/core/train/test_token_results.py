"""Values per token that an objective returns: cut into segments, and fit to be handed in again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from swift.contracts import LossSums
from swift.data.batch import Batch, MicroBatch
from swift.data.samples import Encoded, Segment
from swift.train.sums import GlobalSums

IDS = [[1, 2, 3], [5, 7], [11, 12, 13, 14], [21], [31, 32]]


def batch_of(*, flat: bool) -> Batch:
    samples = [Encoded(n, (_segment(ids),)) for n, ids in enumerate(IDS)]
    rows = [(samples[0], samples[1]), (samples[2],), (samples[3], samples[4])]
    return Batch(
        step=0, rows=rows, first_row=0, micro_rows=2, weight=1.0, global_rows=3, tokens=12, flat=flat, seed=0,
        pad_to_multiple=4, spare_row=rows[2],
    )  # fmt: skip


def _segment(ids: list[int]) -> Segment:
    return Segment(np.array(ids, dtype=np.int32), np.ones(len(ids), dtype=np.float32))


def sums_of(micro_batch: MicroBatch) -> LossSums:
    """Say ten times the target of each position."""
    tens = micro_batch.targets * 10
    vectors = torch.stack([micro_batch.segment_sum(tens), micro_batch.segment_sum(tens * 2)], dim=-1)
    return LossSums(loss=tens.sum(), segments=vectors, tokens={"tens": tens, "halves": tens / 20})


@pytest.mark.parametrize("flat", [True, False])
def test_position_values_return_by_segment_and_target(flat: bool) -> None:
    """Values of positions come back by segment at the tokens that they predict."""
    batch = batch_of(flat=flat)
    sums = GlobalSums("cpu")
    for micro_batch in batch.micro_batches():
        sums.add(sums_of(micro_batch), micro_batch)
    result = sums.forward_result(batch, sums.reduce(None))
    assert [segment["tens"].tolist() for segment in result.tokens] == [[0, *(10 * each for each in i[1:])] for i in IDS]
    assert [segment["halves"].tolist() for segment in result.tokens] == [
        [0, *(each / 2 for each in i[1:])] for i in IDS
    ]
    assert all(segment["tens"].dtype == np.float32 for segment in result.tokens)
    assert result.segments.tolist() == [[10 * sum(i[1:]), 20 * sum(i[1:])] for i in IDS]
    again = batch.with_token_values(result.tokens)
    for micro_batch in again.micro_batches():
        assert torch.equal(micro_batch.token_values["tens"], micro_batch.targets * 10.0)


def test_a_process_without_rows_has_no_values_of_tokens() -> None:
    batch = replace(batch_of(flat=False), rows=[])
    sums = GlobalSums("cpu")
    for micro_batch in batch.micro_batches():
        sums.add(sums_of(micro_batch), micro_batch)
    result = sums.forward_result(batch, sums.reduce(None))
    assert result.tokens == []
    (dummy,) = batch.with_token_values(result.tokens, names=["tens"]).micro_batches()
    assert not dummy.token_values["tens"].any()


def test_an_objective_without_values_of_tokens_gets_none_back() -> None:
    batch = batch_of(flat=True)
    sums = GlobalSums("cpu")
    for micro_batch in batch.micro_batches():
        sums.add(replace(sums_of(micro_batch), tokens={}), micro_batch)
    assert sums.forward_result(batch, sums.reduce(None)).tokens is None

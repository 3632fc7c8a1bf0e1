"""Micro-batches as tensors: shifted once, and the same content padded or end to end."""

from __future__ import annotations

import numpy as np

from swift.data.batch import MicroBatch, collate
from swift.data.samples import Encoded, Segment


def sample(number: int, *tokens: int, values: dict[str, float] | None = None) -> Encoded:
    weights = np.array([0.0, *(0.5 * (token % 3) for token in tokens[1:])], dtype=np.float32)
    return Encoded(number, (Segment(np.array(tokens, dtype=np.int32), weights),), values=values or {})


SAMPLES = [sample(4, 1, 2, 3), sample(9, 5, 7), sample(2, 11, 12, 13, 14)]


def test_a_position_predicts_the_next_token_and_the_last_one_of_a_segment_predicts_nothing() -> None:
    batch = collate(SAMPLES, flat=False)
    assert batch.input_ids.tolist() == [[1, 2, 3, 0], [5, 7, 0, 0], [11, 12, 13, 14]]
    assert batch.targets.tolist() == [[2, 3, 0, 0], [7, 0, 0, 0], [12, 13, 14, 0]]
    assert batch.weights.tolist() == [[1, 0, 0, 0], [0.5, 0, 0, 0], [0, 0.5, 1, 0]]
    assert batch.attention_mask is not None
    assert batch.attention_mask.sum(1).tolist() == [3, 2, 4]


def test_end_to_end_positions_restart_and_no_target_crosses_a_sample() -> None:
    batch = collate(SAMPLES, flat=True, pad_to_multiple=4)
    assert batch.input_ids.tolist() == [[1, 2, 3, 5, 7, 11, 12, 13, 14, 0, 0, 0]]
    assert batch.position_ids[0, :9].tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert batch.targets[0, :9].tolist() == [2, 3, 0, 7, 0, 12, 13, 14, 0]
    assert batch.boundaries is not None
    assert batch.boundaries.tolist() == [0, 3, 5, 9]
    assert batch.attention_mask is None
    assert batch.segment_ids[0, 9:].tolist() == [-1, -1, -1]


def test_both_layouts_sum_to_the_same_per_segment() -> None:
    flat, padded = collate(SAMPLES, flat=True), collate(SAMPLES, flat=False)

    def sums(batch: MicroBatch) -> list[float]:
        return [float(each) for each in batch.segment_sum(batch.weights * batch.targets)]

    expected = [float((s.segments[0].weights * s.segments[0].input_ids).sum()) for s in SAMPLES]
    assert sums(flat) == expected
    assert sums(padded) == expected

"""How the completions of a step share its micro-batches: little padding, and equal work for every process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from swift.data.schedules.layout import slice_of
from swift.errors import ConfigError
from swift_rl.rounds.batching import by_length
from swift_rl.rounds.schedule import _prompts_per_round


def padded(lengths: np.ndarray, order: list[int], micro_rows: int, rank: int = 0, size: int = 1) -> list[int]:
    """The longest sample of each micro-batch of a process."""
    start, end = slice_of(len(order), micro_rows, rank, size)
    mine = lengths[order[start:end]]
    return [int(mine[at : at + micro_rows].max()) for at in range(0, len(mine), micro_rows)]


@pytest.mark.parametrize("count", [1, 3, 4, 7, 32, 61, 64])
def test_every_sample_is_dealt_once_and_no_order_pads_less(count: int) -> None:
    lengths = np.random.RandomState(count).randint(1, 500, count)
    order = by_length(lengths, 4)
    assert sorted(order) == list(range(count))
    sorted_down = -np.sort(-lengths)
    least = sum(int(sorted_down[at : at + 4].max()) for at in range(0, count, 4))
    assert sum(padded(lengths, order, 4)) == least


@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_get_similar_lengths_at_same_time(size: int) -> None:
    """Ranks get long and short samples alike, and similar lengths at the same time."""
    lengths = np.random.RandomState(0).permutation(256) + 1
    order = by_length(lengths, 4)
    by_process = np.array([padded(lengths, order, 4, rank, size) for rank in range(size)])
    assert by_process.shape == (size, 64 // size)
    work = by_process.sum(axis=1)
    assert work.max() - work.min() < 0.25 * work.mean()
    assert np.ptp(by_process, axis=0).max() <= 4 * size


@pytest.mark.parametrize(("rows", "steps", "enough"), [(1, 1, 8), (9, 1, 16), (3, 4, 4), (5, 2, 8)])
def test_indivisible_round_names_global_batch(rows: int, steps: int, enough: int) -> None:
    """The batch that the error names gives whole groups, and a smaller one does not."""
    options: Any = SimpleNamespace(steps_per_pass=steps, num_generations=8)
    with pytest.raises(ConfigError, match="not divisible into groups of 8") as error:
        _prompts_per_round(rows, options)
    assert f"--global_batch_size {enough}," in str(error.value.hint)
    assert _prompts_per_round(enough, options) == enough * steps // 8

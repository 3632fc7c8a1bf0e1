"""Batches: the order of samples is the run's own, whoever takes which slice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from swift.config.sections import Config
from swift.data.batch import Batch, Row
from swift.data.samples import Encoded, SampleFacts, Segment
from swift.data.schedules import BatchLayout, EpochSchedule
from swift.data.schedules.epochs import EpochOrder, evaluation_batches
from swift.data.schedules.layout import pack
from swift.data.store import SampleSet


class InMemory(SampleSet):
    """Samples whose first token is their number."""

    def __init__(self, lengths: Iterable[int]) -> None:
        self.lengths = np.array(list(lengths), dtype=np.int64)
        self.loss_weights = (self.lengths - 1).astype(np.float64)
        self.sample_ids = np.arange(len(self.lengths))
        self.fingerprint = "test"
        self.read: list[int] = []

    def __getitem__(self, index: int) -> Encoded:
        self.read.append(index)
        weights = np.ones(self.lengths[index], dtype=np.float32)
        weights[0] = 0
        return Encoded(index, (Segment(np.full(self.lengths[index], index, dtype=np.int32), weights),))

    def facts(self, index: int) -> Any:
        return SimpleNamespace(tokens=int(self.lengths[index]), loss_weight=float(self.loss_weights[index]), values={})


class TokenMean:
    """The part of an objective that schedules need."""

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        return sum(sample.loss_weight for sample in samples)


def schedule(samples: SampleSet, **changes: Any) -> EpochSchedule:
    layout = BatchLayout(global_rows=6, micro_rows=1, seed=3, max_length=64)
    objective: Any = TokenMean()
    return EpochSchedule(samples, objective, replace(layout, **changes))


def ids(rows: Iterable[Row]) -> list[tuple[int, ...]]:
    return [tuple(sample.sample_id for sample in row) for row in rows]


def slices(batches: EpochSchedule, step: int, data_size: int) -> list[Batch]:
    return [batches.batch(step, rank, data_size) for rank in range(data_size)]


LENGTHS = [2 + (7 * i) % 40 for i in range(50)]


@pytest.mark.parametrize("packing", [False, True])
def test_each_sample_is_in_each_epoch_exactly_once(packing: bool) -> None:
    batches = schedule(InMemory(LENGTHS), epochs=3.0, packing=packing)
    seen: dict[int, list[int]] = {}
    for step in range(batches.total_steps):
        epoch, rows = batches.rows_of(step)
        seen.setdefault(epoch, []).extend(index for row in rows for index in row)
    assert sorted(seen) == [0, 1, 2]
    assert all(sorted(indices) == list(range(50)) for indices in seen.values())
    assert seen[0] != seen[1] != seen[2]
    resumed = schedule(InMemory(LENGTHS), epochs=3.0, packing=packing)
    assert resumed.rows_of(batches.total_steps - 3) == batches.rows_of(batches.total_steps - 3)


@pytest.mark.parametrize("packing", [False, True])
def test_the_slices_of_all_processes_are_the_global_batch(packing: bool) -> None:
    batches = schedule(InMemory(LENGTHS), epochs=2.0, packing=packing)
    for step in range(batches.total_steps):
        alone = batches.batch(step, 0, 1)
        assert alone.weight == sum(sample.loss_weight for row in alone.rows for sample in row)
        assert alone.tokens == sum(sample.tokens for row in alone.rows for sample in row)
        for data_size in (2, 3):
            parts = slices(batches, step, data_size)
            assert [row for part in parts for row in ids(part.rows)] == ids(alone.rows)
            assert {(part.weight, part.tokens) for part in parts} == {(alone.weight, alone.tokens)}
            for part in parts:
                assert ids(alone.rows[part.first_row : part.first_row + len(part.rows)]) == ids(part.rows)


def test_only_the_samples_of_ones_own_slice_are_read() -> None:
    samples = InMemory(LENGTHS)
    batch = schedule(samples).batch(0, 1, 3)
    assert samples.read == [index for row in ids(batch.rows) for index in row]


def test_full_batch_micro_batches_match_on_any_world_size() -> None:
    """Micro-batches of a full batch are the same on any number of processes."""
    batches = schedule(InMemory(LENGTHS), global_rows=8, micro_rows=2)

    def micro(data_size: int) -> list[tuple[list[int], int]]:
        return [(m.sample_ids, m.seed) for part in slices(batches, 1, data_size) for m in part.micro_batches()]

    assert micro(1) == micro(2) == micro(4)
    assert len(micro(1)) == 4


def test_short_last_batch_is_divided_evenly() -> None:
    """The short last batch is dealt out evenly and idle processes get a spare row."""
    batches = schedule(InMemory([5] * 8), global_rows=6)
    assert [len(part.rows) for part in slices(batches, 1, 2)] == [1, 1]
    parts = slices(batches, 1, 3)
    assert [len(part.rows) for part in parts] == [1, 1, 0]
    assert parts[2].spare_row is not None
    (micro,) = parts[2].micro_batches()
    assert float(micro.weights.sum()) == 0


def test_the_order_is_the_seeds() -> None:
    def order(seed: int) -> list[tuple[int, ...]]:
        return schedule(InMemory(LENGTHS), seed=seed).rows_of(0)[1]

    assert order(1) == order(1) != order(2)
    assert schedule(InMemory(LENGTHS), shuffle=False).rows_of(0)[1] == [(i,) for i in range(6)]
    # The same on every machine and with every NumPy, or a resumed run would see samples twice.
    assert schedule(InMemory([5] * 10), seed=42).rows_of(0)[1] == [(5,), (0,), (6,), (4,), (2,), (7,)]


@pytest.mark.parametrize("packing", [False, True])
def test_sample_order_is_stable_and_uses_little_memory(packing: bool) -> None:
    """The order is that of the first release and takes little memory."""
    lengths = np.random.RandomState(0).randint(5, 60, 50_000)
    layout = BatchLayout(global_rows=6, micro_rows=1, seed=3, max_length=64, packing=packing)
    random = np.random.RandomState([3, 1])
    order = random.permutation(len(lengths))
    expected = [(int(index),) for index in order]
    if packing:
        packs = [tuple(each.tolist()) for each in pack(lengths, order, 64)]
        expected = [packs[index] for index in random.permutation(len(packs))]
    rows = EpochOrder(lengths, layout).rows(1)
    assert len(rows) == len(expected)
    assert rows.between(0, len(rows) + 9) == expected
    assert rows.between(10, 30) == expected[10:30]
    held = sum(each.nbytes for each in vars(rows).values() if each is not None)
    assert held <= 12 * len(lengths)
    assert not any(isinstance(each, list | tuple) for each in vars(rows).values())


def test_max_steps_overrides_epochs() -> None:
    """Steps are counted from epochs and max steps outranks them."""
    assert schedule(InMemory([5] * 13), global_rows=4).total_steps == 4
    assert schedule(InMemory([5] * 13), global_rows=4, epochs=2.5).total_steps == 10
    assert schedule(InMemory([5] * 13), global_rows=4, epochs=0.1).total_steps == 1
    batches = schedule(InMemory([5] * 13), global_rows=4, max_steps=9)
    assert (batches.total_steps, batches.steps_per_epoch) == (9, 4)
    assert [batches.rows_of(step)[0] for step in range(9)] == [0] * 4 + [1] * 4 + [2]
    assert [batches.epoch_at(step) for step in (0, 2, 4, 9)] == [0.0, 0.5, 1.0, 2.25]


def test_packs_hold_no_more_than_fits_and_lose_nothing() -> None:
    random = np.random.RandomState(0)
    for _ in range(30):
        lengths = random.randint(1, 101, size=random.randint(1, 400))
        order = random.permutation(len(lengths))
        packs = pack(lengths, order, 100, window=64)
        assert all(lengths[each].sum() <= 100 for each in packs)
        assert sorted(np.concatenate(packs).tolist()) == list(range(len(lengths)))
    assert [each.tolist() for each in pack(np.array([30, 150, 60]), np.arange(3), 100)] == [[1], [2, 0]]


def test_short_chats_fill_their_packs() -> None:
    lengths = np.clip(np.random.RandomState(1).lognormal(3.8, 0.7, size=4000), 8, 512).astype(np.int64)
    assert lengths.sum() > 0.98 * 512 * len(pack(lengths, np.random.RandomState(0).permutation(4000), 512))


def test_packed_batches_are_always_flat() -> None:
    batch = schedule(InMemory(LENGTHS), packing=True).batch(0, 0, 1)
    assert batch.flat
    micro = next(iter(batch.micro_batches()))
    assert micro.input_ids.shape[0] == 1
    assert micro.boundaries is not None
    assert len(micro.boundaries) == len(batch.rows[0]) + 1


def test_device_micro_batch_does_not_query_cpu_values() -> None:
    micro = next(iter(schedule(InMemory(LENGTHS), packing=True).batch(0, 0, 1).micro_batches()))
    elsewhere = micro.to("meta")  # tensors there have no values to be asked for
    assert micro.boundaries is not None
    assert elsewhere.boundaries is micro.boundaries
    assert elsewhere.weights.is_meta
    assert elsewhere.learned().shape == micro.learned().shape == (int((micro.weights != 0).sum()),)


def test_weights_that_are_changed_afterwards_are_looked_at_again() -> None:
    micro = next(iter(schedule(InMemory(LENGTHS)).batch(0, 0, 1).micro_batches())).to("cpu")
    everything = replace(micro, weights=torch.ones_like(micro.weights))
    assert len(everything.learned()) == micro.weights.numel() > len(micro.learned())
    micro.weights = torch.zeros_like(micro.weights)
    assert not len(micro.learned())


@pytest.mark.parametrize("compiled", [False, True])
def test_packs_are_one_width_where_blocks_are_compiled(compiled: bool) -> None:
    config = Config.model_validate(
        {
            "model": {"path": "m"}, "data": {"train": ["d"], "packing": True, "max_length": 64},
            "train": {"global_batch": 4, "micro_batch": 2, "compile": compiled}, "logging": {"output": "."},
        }
    )  # fmt: skip
    samples, objective = InMemory(LENGTHS), cast("Any", TokenMean())
    training = EpochSchedule(samples, objective, BatchLayout.from_config(config))
    steps = [training.batch(step, 0, 1) for step in range(training.total_steps)]
    evaluation = evaluation_batches(samples, objective, BatchLayout.for_evaluation(config, 1), 0, 1)
    for batches in (steps, evaluation):
        widths = {micro.input_ids.shape[1] for batch in batches for micro in batch.micro_batches()}
        assert (widths == {128}) == compiled


@pytest.mark.parametrize("packing", [False, True])
def test_evaluation_sees_each_sample_once(packing: bool) -> None:
    """Evaluation sees everything once with as many batches on every process."""
    objective: Any = TokenMean()
    samples = InMemory(LENGTHS)
    layout = BatchLayout(global_rows=4, micro_rows=2, packing=packing, max_length=64)
    parts = [list(evaluation_batches(samples, objective, layout, rank, 2)) for rank in range(2)]
    assert len(parts[0]) == len(parts[1])
    seen = [index for rank in parts for batch in rank for row in ids(batch.rows) for index in row]
    assert sorted(seen) == list(range(50))
    assert sum(batch.weight for batch in parts[0]) == samples.loss_weights.sum()

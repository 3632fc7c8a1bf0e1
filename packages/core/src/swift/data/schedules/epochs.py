"""The schedule of a data set with random access: which rows each optimizer step takes.

The order of samples is a function of seed and epoch, and a step's rows are a function of the order: the number of
processes decides only who takes which slice. All the state of the schedule is the number of the next step.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from swift.contracts.schedule import BatchSchedule
from swift.data.batch import Batch, Row
from swift.data.schedules.layout import BatchLayout, BatchMaker, WeighsRows, pack
from swift.data.schedules.permutation import KeyedPermutation
from swift.data.store import Facts, SampleSet
from swift.errors import CheckpointError
from swift.installation import pip_install

Indices = tuple[int, ...]
"""A row as indices of samples: one, or a pack."""
LISTED = 1 << 20
"""Most samples whose order is stored as a list; the order of more is computed element by element, without memory."""
_KEYED = "keyed-1"
"""How a checkpoint names that order. One that names none goes on with the list that it began with."""


class EpochSchedule(BatchSchedule):
    """The batches of a run over a data set with random access."""

    def __init__(self, dataset: SampleSet, objective: WeighsRows, layout: BatchLayout) -> None:
        self._dataset = dataset
        self._global_rows = layout.global_rows
        self._batches = BatchMaker(layout, objective, _reader(dataset))
        self._order = EpochOrder(dataset.lengths, layout)
        self._ends: list[int] = []
        """Steps up to the end of each epoch that was looked at."""
        self.steps_per_epoch: int | None = self._epoch_steps(0)
        self.total_steps = layout.max_steps if layout.max_steps is not None else self._steps_of(layout.epochs)

    def rows_of(self, step: int) -> tuple[int, list[Indices]]:
        """Return the epoch that a step belongs to, and its rows."""
        epoch, within = self._locate(step)
        start = within * self._global_rows
        return epoch, self._order.rows(epoch).between(start, start + self._global_rows)

    def epoch_at(self, step: int) -> float:
        """Return the passes over the data that are complete before this step: 1.5 halfway through the second."""
        epoch, within = self._locate(step)
        return epoch + within / self._epoch_steps(epoch)

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the global batch of a step."""
        rows = self.rows_of(step)[1]
        return self._batches.batch(step, rows, _facts(self._dataset, rows), data_rank, data_size)

    def state(self) -> Mapping[str, Any]:
        """Return the kind of order that the run has, where that is not a list."""
        return {"order": _KEYED} if self._order.keyed else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on in the order in which the run began, whichever this version would choose."""
        if state.keys() - {"order"}:
            super().restore(state)
        kind = state.get("order")
        if kind not in (None, _KEYED):
            raise CheckpointError(
                f"The samples of this run come in an order that this swift does not know: {kind!r}.",
                hint=f"Type: {pip_install('swift-core', upgrade=True)}",
            )
        self._order.keyed = self._order.keyed and kind == _KEYED
        self._order.rows.cache_clear()

    def _steps_of(self, epochs: float) -> int:
        whole, part = int(epochs), epochs - int(epochs)
        steps = sum(self._epoch_steps(epoch) for epoch in range(whole))
        return steps + (math.ceil(part * self._epoch_steps(whole)) if part else 0)

    def _epoch_steps(self, epoch: int) -> int:
        while len(self._ends) <= epoch:
            rows = self._order.count(len(self._ends))
            steps = math.ceil(rows / self._global_rows)
            self._ends.append((self._ends[-1] if self._ends else 0) + steps)
        return self._ends[epoch] - (self._ends[epoch - 1] if epoch else 0)

    def _locate(self, step: int) -> tuple[int, int]:
        while not self._ends or self._ends[-1] <= step:
            self._epoch_steps(len(self._ends))
        epoch = bisect_right(self._ends, step)
        return epoch, step - (self._ends[epoch - 1] if epoch else 0)


class EpochOrder:
    """The rows of each epoch: a permutation of the samples, or of packs made from one."""

    def __init__(self, lengths: np.ndarray, layout: BatchLayout) -> None:
        self._lengths = lengths
        self._seed = layout.order_seed
        self._shuffle = layout.shuffle
        self._capacity = layout.capacity
        self.keyed = layout.shuffle and layout.capacity is None and len(lengths) > LISTED
        """Whether the order is computed element by element. Packs are planned over a list."""
        self.rows = lru_cache(maxsize=2)(self._rows)

    def count(self, epoch: int) -> int:
        """Return how many rows an epoch has; different permutations may pack differently."""
        return len(self._lengths) if self._capacity is None else len(self.rows(epoch))

    def _rows(self, epoch: int) -> EpochRows:
        samples = len(self._lengths)
        if self.keyed:
            return EpochRows(KeyedPermutation(samples, self._seed, epoch))
        random = shuffler(self._seed, epoch)
        order = random.permutation(samples) if self._shuffle else np.arange(samples)
        small = np.uint32 if samples <= np.iinfo(np.uint32).max else np.int64
        if self._capacity is None:
            return EpochRows(order.astype(small))
        packs = pack(self._lengths, order, self._capacity)
        # Best fit puts the long samples first; mixed again, batches are alike.
        mixed = random.permutation(len(packs)) if self._shuffle else np.arange(len(packs))
        inside = np.concatenate([np.zeros(0, dtype=np.int64), *(packs[index] for index in mixed)])
        return EpochRows(inside.astype(small), [len(packs[index]) for index in mixed])


class EpochRows:
    """The rows of an epoch in order, in a few bytes for each sample however many there are."""

    def __init__(self, order: np.ndarray | KeyedPermutation, sizes: Sequence[int] | None = None) -> None:
        """Take samples in order, and of how many of them each row consists; of one, where nothing is said."""
        self._order = order
        self._ends = None if sizes is None else np.cumsum(sizes, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._order if self._ends is None else self._ends)

    def between(self, start: int, end: int) -> list[Indices]:
        """Return the rows from `start` to `end`, or to the last."""
        end = min(end, len(self))
        if self._ends is None:
            return [(sample,) for sample in self._order[np.arange(start, end)].tolist()]
        edges = [int(self._ends[index - 1]) if index else 0 for index in range(start, end + 1)]
        return [tuple(self._order[np.arange(*each)].tolist()) for each in pairwise(edges)]


def shuffler(seed: int, epoch: int) -> np.random.RandomState:
    """Randomness of one epoch. NumPy promises that this generator's stream never changes, of others it does not."""
    return np.random.RandomState([seed % 2**32, epoch])


def evaluation_batches(
    dataset: SampleSet, objective: WeighsRows, layout: BatchLayout, data_rank: int, data_size: int
) -> Iterator[Batch]:
    """Yield all samples once, in order, `layout.global_rows` rows at a time; as many batches on every process.

    With packing they are packed within windows, and come in the order of the packs.
    """
    order = EpochOrder(dataset.lengths, replace(layout, shuffle=False, seed=0)).rows(0)
    maker = BatchMaker(layout, objective, _reader(dataset))
    for step, start in enumerate(range(0, len(order), layout.global_rows)):
        part = order.between(start, start + layout.global_rows)
        yield maker.batch(step, part, _facts(dataset, part), data_rank, data_size)


def _reader(dataset: SampleSet) -> Callable[[Indices], Row]:
    return lambda row: tuple(dataset[index] for index in row)


def _facts(dataset: SampleSet, rows: Sequence[Indices]) -> list[Facts]:
    return [dataset.facts(index) for row in rows for index in row]

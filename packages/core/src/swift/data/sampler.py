"""Batches by number: which rows an optimizer step takes, and which of them are this process's.

The order of samples is a function of seed and epoch, and a step's rows are a function of the order: the number of
processes decides only who takes which slice. The state of the sampler is the number of the next step.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

import numpy as np

from swift.contracts import Objective
from swift.data.batch import Batch, Row
from swift.data.packing import pack
from swift.data.samples import SampleFacts
from swift.data.store import Facts, SampleSet

RowT = TypeVar("RowT")

Indices = tuple[int, ...]
"""A row as indices of samples: one, or a pack."""


class Plan(Protocol):
    """What training asks for batches, whether the data is read whole or streamed."""

    total_steps: int
    steps_per_epoch: int | None
    """Of the first epoch; None where nobody knows."""

    def epoch_at(self, step: int) -> float:
        """Passes over the data that are complete before this step."""

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """One process's slice of the global batch of a step."""


class BatchPlan:
    """The batches of a run over a data set with random access."""

    def __init__(
        self,
        dataset: SampleSet,
        objective: Objective,
        *,
        global_rows: int,
        micro_rows: int,
        seed: int,
        epochs: float,
        max_steps: int | None,
        shuffle: bool,
        packing: bool,
        flat: bool,
        max_length: int,
        pad_to_multiple: int = 1,
    ) -> None:
        self._dataset = dataset
        self._global_rows = global_rows
        self._layout = Layout(objective, _reader(dataset), micro_rows, flat or packing, seed, pad_to_multiple)
        self._order = EpochOrder(dataset.lengths, seed, shuffle, max_length if packing else None)
        self._ends: list[int] = []
        """Steps up to the end of each epoch that was looked at."""
        self.steps_per_epoch: int | None = self._epoch_steps(0)
        self.total_steps = max_steps if max_steps is not None else self._steps_of(epochs)

    @property
    def fill_ratio(self) -> float:
        """Tokens of the first epoch over what its rows have room for; 1.0 without packing."""
        return self._order.fill_ratio

    def rows_of(self, step: int) -> tuple[int, list[Indices]]:
        """The epoch that a step belongs to, and its rows."""
        epoch, within = self._locate(step)
        rows = self._order.rows(epoch)
        return epoch, rows[within * self._global_rows : (within + 1) * self._global_rows]

    def epoch_at(self, step: int) -> float:
        """Passes over the data that are complete before this step: 1.5 halfway through the second."""
        epoch, within = self._locate(step)
        return epoch + within / self._epoch_steps(epoch)

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """One process's slice of the global batch of a step."""
        rows = self.rows_of(step)[1]
        return self._layout.batch(step, rows, _facts(self._dataset, rows), data_rank, data_size)

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

    def __init__(self, lengths: np.ndarray, seed: int, shuffle: bool, capacity: int | None) -> None:
        self._lengths = lengths
        self._seed = seed
        self._shuffle = shuffle
        self._capacity = capacity
        self.rows: Callable[[int], list[Indices]] = lru_cache(maxsize=2)(self._rows)

    @property
    def fill_ratio(self) -> float:
        """Tokens of the first epoch over what its rows have room for; 1.0 without packing."""
        if self._capacity is None:
            return 1.0
        return float(self._lengths.sum()) / (self._capacity * len(self.rows(0)))

    def count(self, epoch: int) -> int:
        """How many rows an epoch has; different permutations may pack differently."""
        return len(self._lengths) if self._capacity is None else len(self.rows(epoch))

    def _rows(self, epoch: int) -> list[Indices]:
        random = shuffler(self._seed, epoch)
        samples = len(self._lengths)
        order = random.permutation(samples) if self._shuffle else np.arange(samples)
        if self._capacity is None:
            return [(index,) for index in order.tolist()]
        packs = [tuple(each.tolist()) for each in pack(self._lengths, order, self._capacity)]
        # Best fit puts the long samples first; mixed again, batches are alike.
        return [packs[index] for index in random.permutation(len(packs))] if self._shuffle else packs


def shuffler(seed: int, epoch: int) -> np.random.RandomState:
    """Randomness of one epoch. NumPy promises that this generator's stream never changes, of others it does not."""
    return np.random.RandomState([seed % 2**32, epoch])


@dataclass(frozen=True)
class Layout(Generic[RowT]):
    """How rows are laid out as batches. `read` makes a row of what stands for one in a plan."""

    objective: Objective
    read: Callable[[RowT], Row]
    micro_rows: int
    flat: bool
    seed: int
    pad_to_multiple: int

    def batch(
        self, step: int, rows: Sequence[RowT], facts: Sequence[SampleFacts], data_rank: int, data_size: int
    ) -> Batch:
        """One process's slice of these rows; `facts` are of all samples in them."""
        start, end = slice_of(len(rows), self.micro_rows, data_rank, data_size)
        own = [self.read(row) for row in rows[start:end]]
        return Batch(
            step=step,
            rows=own,
            first_row=start,
            micro_rows=self.micro_rows,
            weight=self.objective.row_weight(facts),
            global_rows=len(rows),
            tokens=sum(each.tokens for each in facts),
            flat=self.flat,
            seed=self.seed,
            pad_to_multiple=self.pad_to_multiple,
            spare_row=None if own else self.read(rows[0]),
        )


def slice_of(rows: int, micro_rows: int, data_rank: int, data_size: int) -> tuple[int, int]:
    """Which of the rows of a batch are one process's: contiguous whole micro-batches, as evenly as can be.

    Cut anywhere else, a short batch would make other micro-batches on other numbers of processes, and dropout, which
    is drawn for a micro-batch, would differ. No process gets more micro-batches than with an even share of rows.
    """
    base, more = divmod(math.ceil(rows / micro_rows), data_size)
    start = data_rank * base + min(data_rank, more)
    end = start + base + (1 if data_rank < more else 0)
    return min(rows, start * micro_rows), min(rows, end * micro_rows)


def evaluation_batches(
    dataset: SampleSet,
    objective: Objective,
    *,
    rows: int,
    data_rank: int,
    data_size: int,
    flat: bool = False,
    packing: bool = False,
    max_length: int = 0,
    pad_to_multiple: int = 1,
    micro_rows: int | None = None,
) -> Iterator[Batch]:
    """All samples once, in order, `rows` at a time over all processes; as many batches on every process.

    With `packing` they are packed within windows, and come in the order of the packs.
    """
    order = EpochOrder(dataset.lengths, 0, shuffle=False, capacity=max_length if packing else None).rows(0)
    micro_rows = micro_rows or math.ceil(rows / data_size)
    layout = Layout(objective, _reader(dataset), micro_rows, flat or packing, 0, pad_to_multiple)
    for step, start in enumerate(range(0, len(order), rows)):
        part = order[start : start + rows]
        yield layout.batch(step, part, _facts(dataset, part), data_rank, data_size)


def _reader(dataset: SampleSet) -> Callable[[Indices], Row]:
    return lambda row: tuple(dataset[index] for index in row)


def _facts(dataset: SampleSet, rows: Sequence[Indices]) -> list[Facts]:
    return [dataset.facts(index) for row in rows for index in row]

"""How rows are put into batches, whichever schedule chooses them: how many, in which form, and whose slice is which."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from swift.data.batch import Batch, Row

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift.data.samples import SampleFacts

RowT = TypeVar("RowT")
Packs = list[np.ndarray]

WINDOW = 16_384
"""Samples that are packed together. Larger fills better and schedules longer; this many fills short chats by 99 %."""


class WeighsRows(Protocol):
    """What batches need of an objective."""

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """Return how much these samples weigh."""


@dataclass(frozen=True)
class BatchLayout:
    """The configuration's settings of batches."""

    global_rows: int
    """Rows of a global batch."""
    micro_rows: int
    """Rows of a micro-batch."""
    seed: int = 0
    data_seed: int | None = None
    """Of the order of samples; None takes `seed`."""
    max_length: int = 0
    """Tokens of a pack."""
    shuffle: bool = True
    packing: bool = False
    """Whether several samples share a row."""
    padding_free: bool = False
    """Whether the segments of a micro-batch lie end to end; those of packs always do."""
    epochs: float = 1.0
    max_steps: int | None = None
    pad_to_multiple: int = 1
    """Of the width of rows; packs are as wide as all others where blocks are compiled: code is made for one width."""

    @classmethod
    def from_config(cls, config: Config) -> BatchLayout:
        """Return the layout of training, of a configuration whose `train.global_batch` is settled."""
        if config.train.global_batch is None:
            raise ValueError("train.global_batch is not settled yet")
        return cls(
            global_rows=config.train.global_batch,
            micro_rows=config.train.micro_batch,
            seed=config.train.seed,
            data_seed=config.train.data_seed,
            max_length=config.data.max_length,
            shuffle=config.data.shuffle,
            packing=config.data.packing,
            padding_free=bool(config.data.padding_free),
            epochs=config.train.epochs,
            max_steps=config.train.max_steps,
            pad_to_multiple=_multiple(config, config.train.micro_batch),
        )

    @classmethod
    def for_evaluation(cls, config: Config, data_size: int, *, compared: bool = False) -> BatchLayout:
        """Return the layout of evaluation and scoring: rows in order, as many per process as it evaluates at once.

        Where the rows of a global batch are `compared` with each other, it has as many rows as in training, so that
        the loss means the same, on however many processes.
        """
        per_process = config.train.eval_batch or config.train.micro_batch
        return cls(
            global_rows=(config.train.global_batch if compared else None) or per_process * data_size,
            micro_rows=per_process,
            max_length=config.data.max_length,
            shuffle=False,
            packing=config.data.packing,
            padding_free=bool(config.data.padding_free),
            pad_to_multiple=_multiple(config, per_process),
        )

    @property
    def order_seed(self) -> int:
        """Return the seed of the order of samples in force."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def flat(self) -> bool:
        """Whether the segments of a micro-batch lie end to end."""
        return self.packing or self.padding_free

    @property
    def capacity(self) -> int | None:
        """Tokens of a pack; None without packing."""
        return self.max_length if self.packing else None


def _multiple(config: Config, rows: int) -> int:
    return config.data.max_length * rows if config.data.packing and config.train.compile else 1


@dataclass(frozen=True)
class BatchMaker(Generic[RowT]):
    """Makes batches of chosen rows. `read` makes a row of what stands for one in a schedule."""

    layout: BatchLayout
    objective: WeighsRows
    read: Callable[[RowT], Row]

    def batch(
        self, step: int, rows: Sequence[RowT], facts: Sequence[SampleFacts], data_rank: int, data_size: int
    ) -> Batch:
        """Return one process's slice of these rows; `facts` are of all samples in them."""
        layout = self.layout
        start, end = slice_of(len(rows), layout.micro_rows, data_rank, data_size)
        own = [self.read(row) for row in rows[start:end]]
        return Batch(
            step=step,
            rows=own,
            first_row=start,
            micro_rows=layout.micro_rows,
            weight=self.objective.row_weight(facts),
            global_rows=len(rows),
            tokens=sum(each.tokens for each in facts),
            flat=layout.flat,
            seed=layout.seed,
            pad_to_multiple=layout.pad_to_multiple,
            spare_row=None if own else self.read(rows[0]),
        )


def rows_in_memory(layout: BatchLayout, objective: WeighsRows) -> BatchMaker[Row]:
    """Return what makes batches of rows that are in memory already."""
    return BatchMaker(layout, objective, lambda row: row)


def slice_of(rows: int, micro_rows: int, data_rank: int, data_size: int) -> tuple[int, int]:
    """Return which rows of a batch are one process's: contiguous whole micro-batches, as evenly as can be.

    Cut anywhere else, a short batch would make other micro-batches on other numbers of processes, and dropout, which
    is drawn for a micro-batch, would differ. No process gets more micro-batches than with an even share of rows.
    """
    base, more = divmod(math.ceil(rows / micro_rows), data_size)
    start = data_rank * base + min(data_rank, more)
    end = start + base + (1 if data_rank < more else 0)
    return min(rows, start * micro_rows), min(rows, end * micro_rows)


def pack(lengths: np.ndarray, order: np.ndarray, capacity: int, window: int = WINDOW) -> Packs:
    """Return the samples of `order` as packs of at most `capacity` tokens; each sample is in exactly one.

    Best fit, longest first, within windows of the global order, so that packs are the same on any machines. A sample
    that is longer than the capacity (a pair may be) has a pack to itself.
    """
    packs: Packs = []
    for start in range(0, len(order), window):
        packs += _best_fit(lengths, order[start : start + window], capacity)
    return packs


def _best_fit(lengths: np.ndarray, order: np.ndarray, capacity: int) -> Packs:
    sizes = lengths[order]
    longest_first = np.argsort(-sizes, kind="stable")
    packs: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, pack), sorted
    for sample, size in zip(order[longest_first].tolist(), sizes[longest_first].tolist(), strict=True):
        at = bisect_left(room, (size, -1))
        if at == len(room):
            left, number = capacity, len(packs)
            packs.append([])
        else:
            left, number = room.pop(at)
        packs[number].append(sample)
        insort(room, (left - size, number))
    return [np.array(each, dtype=np.int64) for each in packs]

"""Batch schedules: which samples each optimizer step takes. An objective may bring its own."""

from __future__ import annotations

from swift.contracts.schedule import BatchSchedule
from swift.data.schedules.epochs import EpochSchedule, shuffler
from swift.data.schedules.layout import BatchLayout, WeighsRows, pack, rows_in_memory
from swift.data.schedules.streams import StreamingSchedule
from swift.data.store import SampleSet
from swift.data.streaming import SampleStream

__all__ = [
    "BatchLayout",
    "EpochSchedule",
    "StreamingSchedule",
    "default_schedule",
    "pack",
    "rows_in_memory",
    "shuffler",
]


def default_schedule(objective: WeighsRows, data: SampleSet | SampleStream, layout: BatchLayout) -> BatchSchedule:
    """Return the schedule of a data set, epoch after epoch, or of a stream, which is read as far as its first row."""
    if isinstance(data, SampleSet):
        return EpochSchedule(data, objective, layout)
    schedule = StreamingSchedule(data, objective, layout)
    schedule.begin()
    return schedule

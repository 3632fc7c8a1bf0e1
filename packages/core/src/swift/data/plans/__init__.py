"""Plans: which samples each optimizer step takes. An objective may bring one of its own (`Objective.plan`)."""

from __future__ import annotations

from swift.contracts.objective import Objective
from swift.contracts.plan import Plan
from swift.data.plans.epochs import EpochPlan, no_such_plan, shuffler
from swift.data.plans.layout import BatchLayout, rows_in_memory
from swift.data.plans.packing import pack
from swift.data.plans.streams import StreamingPlan
from swift.data.store import SampleSet
from swift.data.streaming import SampleStream

__all__ = [
    "BatchLayout",
    "EpochPlan",
    "StreamingPlan",
    "default_plan",
    "no_such_plan",
    "pack",
    "rows_in_memory",
    "shuffler",
]


def default_plan(objective: Objective, data: SampleSet | SampleStream, layout: BatchLayout) -> Plan:
    """Return the plan of a data set, epoch after epoch, or of a stream, which is read as far as its first row."""
    if isinstance(data, SampleSet):
        return EpochPlan(data, objective, layout)
    plan = StreamingPlan(data, objective, layout)
    plan.begin()
    return plan

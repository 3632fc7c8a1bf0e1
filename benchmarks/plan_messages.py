"""What level 3 of `swift plan` says of messages between two processes of this machine, in sizes that it has not seen.

Sizes that are fitted and sizes that are not take turns in the same processes. Errors are of α + n / β against the time
of one message; so are those of what is assumed where nothing was measured. Wall-clock times: of each size
the least of some rounds counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.facts import Figure
from swift.contracts import Traffic
from swift_plan.collectives import SIZES, TimedMessages, timed
from swift_plan.machine import this_machine
from swift_plan.messages import MessageKind, fit_messages
from swift_plan.timing import Timing

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
PROCESSES = 2
OTHERS = tuple(2 * size for size in SIZES[:-1])
"""Between those that are fitted, and never fitted."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    where = this_machine(PROCESSES, 1)
    sizes = sorted((*SIZES, *OTHERS))
    if quick:
        sizes = [size for size in sizes if size <= 2**20]
    kinds = [MessageKind(operation, PROCESSES, 1) for operation in OPERATIONS]
    load = os.getloadavg()[0]
    found = timed(where, kinds, lambda messages: print(f"  {messages.kind}: {messages.cost()}", flush=True), sizes)
    assumed = Timing(where)
    errors: dict[str, list[float]] = {}
    of_assumed: list[float] = []
    details: dict[str, Any] = {}
    for messages in found:
        fitted, others = _apart(messages, sizes)
        cost = fit_messages(*zip(*fitted, strict=True))
        errors[messages.kind.operation] = [abs(cost.seconds(sent) / took - 1) for sent, took in others]
        for size, took in zip(sizes, messages.seconds, strict=True):
            if size in OTHERS:
                message = Traffic("", messages.kind.operation, size, PROCESSES)  # type: ignore[arg-type]  # one of its names
                of_assumed.append(abs(assumed.message(message) / took - 1))
        details[messages.kind.operation] = {
            "latency, microseconds": 1e6 * cost.latency,
            "gigabytes a second": 1e-9 / cost.per_byte if cost.per_byte else None,
            "seconds by bytes": dict(zip(map(str, sizes), messages.seconds, strict=True)),
        }
    every = [error for each in errors.values() for error in each]
    figures = [
        Figure("messages of sizes that were not fitted", len(every), ""),
        Figure("their time: median of what is missed", 100 * median(every), "%"),
        Figure("their time: the most that is missed", 100 * max(every), "%"),
        *(Figure(f"{name}: median of what is missed", 100 * median(each), "%") for name, each in errors.items()),
        Figure("for comparison, at assumed speeds: median of what is missed", 100 * median(of_assumed), "%"),
    ]
    note = (
        f"When this began, {load:.1f} processes on average wanted the machine's {os.cpu_count()} cores: beyond what is "
        "measured, those are neighbours, who delay messages."
    )
    return figures, {"messages": details, "load of the machine at the beginning": load, "notes": [note]}


def _apart(
    messages: TimedMessages, sizes: Sequence[int]
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return bytes and seconds of the sizes that are fitted, and of the others."""
    rows = list(zip(sizes, messages.sent, messages.seconds, strict=True))
    return tuple([(sent, took) for size, sent, took in rows if (size in OTHERS) == other] for other in (False, True))  # type: ignore[return-value]  # two of them

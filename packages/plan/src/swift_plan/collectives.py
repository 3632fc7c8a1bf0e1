"""Level 3 of a plan: measured times of messages between processes of this machine."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swift.contracts import Traffic
from swift.errors import SwiftError
from swift_plan.cluster import Cluster
from swift_plan.messages import MessageCost, MessageKind, fit_messages
from swift_plan.timing import Timing
from swift_plan.trials import ended, failure_of

SIZES = tuple(4**power * 2**10 for power in range(2, 9))
"""Bytes of the messages that are timed, as plans count them: 16 KiB to 64 MiB."""


@dataclass(frozen=True)
class ListeningTiming(Timing):
    """Timing that records the kinds of messages."""

    kinds: set[MessageKind] = field(default_factory=set)

    def message(self, traffic: Traffic) -> float:
        """Return the seconds of a message, and record its kind."""
        self.kinds.add(MessageKind.of(traffic))
        return super().message(traffic)


def within(kinds: Iterable[MessageKind], where: Cluster) -> list[MessageKind]:
    """Return those that stay within a machine, and so can be measured there."""
    return sorted(
        kind for kind in kinds
        if kind.operation != "host" and kind.ways > 1 and where.per_machine % (kind.ways * kind.stride) == 0
    )  # fmt: skip


def timed(
    where: Cluster, kinds: Sequence[MessageKind], report: Callable[[MessageKind, MessageCost], None]
) -> dict[MessageKind, MessageCost]:
    """Start the processes of a machine like this one, and time their messages; `report` is called for each kind."""
    found: dict[MessageKind, MessageCost] = {}

    def on_line(line: str) -> None:
        if line.startswith("{"):
            content = json.loads(line)
            kind = MessageKind(*content["kind"])
            sent = [Traffic("", kind.operation, size, kind.ways).sent for size in content["sizes"]]  # type: ignore[arg-type]  # an operation's name
            found[kind] = fit_messages(sent, content["seconds"])
            report(kind, found[kind])

    with tempfile.TemporaryDirectory(prefix="swift-plan-") as folder:
        order = Path(folder, "order.json")
        order.write_text(json.dumps({"kinds": kinds, "sizes": SIZES}), encoding="utf-8")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
        threads = max(1, len(os.sched_getaffinity(0)) // where.per_machine)  # as `--nproc` sets it
        code, output = ended(
            [*launcher, str(where.per_machine), "-m", "swift_plan.exchanging", str(order)],
            {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}, on_line,
        )  # fmt: skip
    if code or len(found) < len(kinds):
        raise SwiftError(
            f"Messages between {where.per_machine} processes of this machine could not be timed: {failure_of(output)}",
            hint="Omit --level 3 to use assumed times.",
        )
    return found

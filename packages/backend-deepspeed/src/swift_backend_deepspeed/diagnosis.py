"""Looks at the first steps of a run for what makes it slow: updates in main memory, and unequal shares of tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist

from swift.data.batch import Batch

FROM, UNTIL = 2, 22
"""Steps that are looked at; the first ones set things up."""
UPDATE_SHARE = 0.4
"""Of a step, from which on it is worth a word."""
UNEVEN = 1.3
"""Tokens of the busiest process, as a multiple of the mean."""


@dataclass
class Spent:
    """Seconds and tokens of one process in the observed steps."""

    seconds: float = 0.0
    updating: float = 0.0
    tokens: int = 0


@dataclass
class Watch:
    """Collects, and says once what it has found."""

    offloaded_to: str
    say: Callable[[str], None]
    spent: Spent = field(default_factory=Spent)
    _made: int = 0
    _begin: float = 0.0
    _update: float = 0.0

    def step_begins(self) -> None:
        """Record the start of a step; called on every process."""
        self._begin = time.perf_counter()

    def update_begins(self) -> None:
        """Record that gradients are ready."""
        self._update = time.perf_counter()

    def step_ends(self, batch: Batch) -> None:
        """Record the end of a step; called on every process."""
        self._made += 1
        if not FROM < self._made <= UNTIL:
            return
        now = time.perf_counter()
        self.spent.seconds += now - self._begin
        self.spent.updating += now - self._update
        self.spent.tokens += sum(sample.tokens for row in batch.rows for sample in row)
        if self._made == UNTIL:
            everybody: list[Spent] = [self.spent] * dist.get_world_size()
            dist.all_gather_object(everybody, self.spent)
            for line in findings(everybody, self.offloaded_to):
                self.say(line)


def findings(everybody: Sequence[Spent], offloaded_to: str) -> Iterator[str]:
    """Yield one line for each thing that is worth changing."""
    slowest = max(everybody, key=lambda each: each.updating)
    share = slowest.updating / max(slowest.seconds, 1e-9)
    if offloaded_to != "none" and share >= UPDATE_SHARE:
        yield (
            f"{share:.0%} of a step is the update of what offload_optimizer keeps on {offloaded_to}. More rows per "
            "update (--gradient_accumulation_steps) make that smaller; without offload it is faster."
        )
    mean = sum(each.tokens for each in everybody) / len(everybody)
    busiest = max(range(len(everybody)), key=lambda rank: everybody[rank].tokens)
    if mean and everybody[busiest].tokens >= UNEVEN * mean:
        yield (
            f"Process {busiest} has {everybody[busiest].tokens / mean:.1f} times the mean number of tokens, and the "
            "others wait for it. --packing true gives all of them equally full rows."
        )

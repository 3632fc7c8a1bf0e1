"""The learning rate of every step, as a pure function: no state to save, nothing to restore.

Importable without torch. The shapes are those of transformers' `get_*_schedule_with_warmup` and `get_wsd_schedule`,
so that runs can be compared number by number. As there, warm-up starts from zero: the first of n warm-up steps has
learning rate 0, the second peak / n, and the step after them the peak.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from swift.config.sections import OptimSection

Shape = Literal["cosine", "linear", "constant", "wsd"]


@dataclass(frozen=True)
class Schedule:
    """`schedule(step)` is the learning rate of optimizer step `step`, counted from 0."""

    peak: float
    total_steps: int
    warmup_steps: int = 0
    shape: Shape = "cosine"
    min_lr_ratio: float = 0.0
    decay_steps: int = 0
    """How many steps at the end `wsd` decays in."""

    @classmethod
    def from_config(cls, optim: OptimSection, peak: float, total_steps: int) -> Schedule:
        """Return the schedule that the `optim` section asks for, over `total_steps` optimizer steps."""
        warmup = optim.warmup_steps
        if warmup is None:
            warmup = math.ceil(optim.warmup_ratio * total_steps)
        decay = min(math.ceil(optim.decay_ratio * total_steps), max(0, total_steps - warmup))
        return cls(
            peak=peak,
            total_steps=total_steps,
            warmup_steps=warmup,
            shape=optim.schedule,
            min_lr_ratio=optim.min_lr_ratio,
            decay_steps=decay,
        )

    def __call__(self, step: int) -> float:
        """Learning rate of optimizer step `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.peak * step / self.warmup_steps
        return self.peak * (self.min_lr_ratio + (1.0 - self.min_lr_ratio) * self._remaining(step))

    def _remaining(self, step: int) -> float:
        """Return the fraction of the decay from peak to floor that remains, from 1 to 0."""
        if self.shape == "constant":
            return 1.0
        start = self.total_steps - self.decay_steps if self.shape == "wsd" else self.warmup_steps
        if step < start:
            return 1.0
        progress = min(1.0, (step - start) / max(1, self.total_steps - start))
        if self.shape == "linear":
            return 1.0 - progress
        return 0.5 * (1.0 + math.cos(math.pi * progress))

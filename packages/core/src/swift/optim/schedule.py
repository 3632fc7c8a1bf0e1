"""The learning rate of every step, as a pure function: no state to save, nothing to restore.

Importable without torch. The shapes and the arithmetic are those of transformers' schedules of the same names, so that
runs can be compared number by number. As there, warm-up starts from zero: the first of n warm-up steps has learning
rate 0, the second peak / n, and the step after them the peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swift.config.schedules import floor_of
from swift.config.sections import OptimSection, ScheduleOptions, Shape


@dataclass(frozen=True)
class Schedule:
    """`schedule(step)` is the learning rate of optimizer step `step`, counted from 0."""

    peak: float
    total_steps: int
    warmup_steps: int = 0
    shape: Shape = "cosine"
    min_lr: float = 0.0
    """The learning rate at the end."""
    min_lr_ratio: float = 0.0
    """The same as a part of the peak."""
    decay_start: int = 0
    """The first step of the decay of `wsd` and `warmup_stable_decay`."""
    decay_steps: int = 0
    """How many steps their decay takes."""
    options: ScheduleOptions = field(default_factory=ScheduleOptions)

    @classmethod
    def from_config(cls, optim: OptimSection, peak: float, total_steps: int) -> Schedule:
        """Return the schedule that the `optim` section asks for, over `total_steps` optimizer steps."""
        options = optim.schedule_options or ScheduleOptions()
        warmup = optim.warmup_steps
        if warmup is None:
            warmup = math.ceil(optim.warmup_ratio * total_steps)
        decay = options.num_decay_steps
        if decay is None:
            decay = min(math.ceil(optim.decay_ratio * total_steps), max(0, total_steps - warmup))
        stable = options.num_stable_steps
        floor = floor_of(optim, peak)
        return cls(
            peak=peak,
            total_steps=total_steps,
            warmup_steps=warmup,
            shape=optim.schedule,
            min_lr=floor,
            min_lr_ratio=optim.min_lr_ratio if optim.min_lr is None and optim.min_lr_ratio else floor / peak,
            decay_start=total_steps - decay if stable is None else warmup + stable,
            decay_steps=decay,
            options=options,
        )

    def __call__(self, step: int) -> float:
        """Learning rate of optimizer step `step`, counted from 0."""
        return self.peak * (self._warmed(step) if step < self.warmup_steps else _DECAYS[self.shape](self, step))

    def _warmed(self, step: int) -> float:
        """Return the part of the peak that is reached in the warm-up."""
        progress = step / self.warmup_steps
        kind = self.options.warmup_type
        factor = progress
        if kind == "cosine":
            factor = 0.5 * (1.0 - math.cos(math.pi * progress))
        elif kind == "1-sqrt":
            factor = 1.0 - math.sqrt(1.0 - progress)
        return self._above_floor(factor) if self.shape == "warmup_stable_decay" else factor

    def _above_floor(self, remaining: float) -> float:
        """Return the part of the peak where `remaining`, from 1 to 0, of the way from peak to floor remains."""
        return max(0.0, remaining * (1.0 - self.min_lr_ratio) + self.min_lr_ratio)

    def _progress(self, step: int) -> float:
        """Return the part of the steps after the warm-up that is made."""
        return min(1.0, (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))

    def _waves(self, progress: float) -> float:
        cycles = 0.5 if self.options.num_cycles is None else float(self.options.num_cycles)
        return 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress))

    def _constant(self, _step: int) -> float:
        return 1.0

    def _linear(self, step: int) -> float:
        left = max(0, self.total_steps - step) / max(1, self.total_steps - self.warmup_steps)
        return self._above_floor(left)

    def _cosine(self, step: int) -> float:
        return self._above_floor(self._waves(self._progress(step)))

    def _restarts(self, step: int) -> float:
        progress = self._progress(step)
        if progress >= 1.0:
            return self.min_lr_ratio
        cycles = float(self.options.num_cycles or 1)
        return self._above_floor(0.5 * (1.0 + math.cos(math.pi * ((cycles * progress) % 1.0))))

    def _polynomial(self, step: int) -> float:
        remaining = 1.0 - self._progress(step)
        return ((self.peak - self.min_lr) * math.pow(remaining, self.options.power) + self.min_lr) / self.peak

    def _inverse_sqrt(self, step: int) -> float:
        timescale = self.options.timescale or self.warmup_steps or 10_000
        shift = timescale - self.warmup_steps
        return max(self.min_lr_ratio, 1.0 / math.sqrt((step + shift) / timescale))

    def _wsd(self, step: int) -> float:
        if step < self.decay_start:
            return 1.0
        if step >= self.decay_start + self.decay_steps:
            return self.min_lr_ratio
        progress = (step - self.decay_start) / max(1, self.decay_steps)
        kind = self.options.decay_type
        if kind == "linear":
            return self._above_floor(1.0 - progress)
        return self._above_floor(1.0 - math.sqrt(progress) if kind == "1-sqrt" else self._waves(progress))


_DECAYS: Mapping[Shape, Callable[[Schedule, int], float]] = {
    "cosine": Schedule._cosine,
    "linear": Schedule._linear,
    "constant": Schedule._constant,
    "polynomial": Schedule._polynomial,
    "cosine_with_restarts": Schedule._restarts,
    "inverse_sqrt": Schedule._inverse_sqrt,
    "wsd": Schedule._wsd,
    "warmup_stable_decay": Schedule._wsd,
}
"""Shape → the part of the peak after the warm-up."""

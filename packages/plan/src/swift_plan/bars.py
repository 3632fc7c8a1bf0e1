"""How far a predicted figure may be off, from how far predictions were off: quantiles of errors (split-conformal).

Where the errors are those of rows that look like the one to come, and none of the rows had a part in its own
prediction, a bar of 90 % holds what is measured in 90 % of cases, whatever the errors' distribution. Few rows cannot
promise that: the bar is then as wide as the largest error, and not narrower than what is assumed without any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, log

LEVEL = 0.9
ASSUMED = log(1.35)
"""The error of a prediction by assumed speeds, where nothing was measured yet: by comparison with published runs."""


MEMORY_ASSUMED = log(1.08)
"""The error of a counted peak, where nothing was measured yet: what allocators and libraries take is not counted."""
MEMORY_ON_CPU = log(2)
"""The same on a CPU, whose allocator keeps much of what is freed: real models took up to 1.9 times the counted peak."""


@dataclass(frozen=True)
class Bar:
    """A figure with its bounds."""

    value: float
    low: float
    high: float
    rows: int
    """How many measured errors it is made of."""
    assumed: bool
    """Whether they are too few for the level, so that it is in part what was assumed."""

    def __str__(self) -> str:
        """Return the bounds as shares of the figure, and what they rest on."""
        share = f"{self.low / self.value - 1:+.0%} … {self.high / self.value - 1:+.0%}"
        return f"{share} ({'assumed, ' if self.assumed else ''}{self.rows} rows)"


class Bars:
    """Bars of one kind of figure, from the errors of those that came before."""

    def __init__(self, errors: Sequence[float], *, assumed: float = ASSUMED) -> None:
        """Take errors as logarithms, log(measured / predicted), and the one that is assumed without any."""
        self._sizes, self._assumed = sorted(map(abs, errors)), assumed

    def around(self, value: float, level: float = LEVEL) -> Bar:
        """Return the bar of a predicted figure."""
        width, assumed = self._width(level)
        return Bar(value, value * exp(-width), value * exp(width), len(self._sizes), assumed)

    def _width(self, level: float) -> tuple[float, bool]:
        count = len(self._sizes)
        index = ceil((count + 1) * level)
        if index <= count:
            return self._sizes[index - 1], False
        return max([self._assumed, *self._sizes]), True

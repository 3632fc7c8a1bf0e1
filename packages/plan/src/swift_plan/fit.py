"""Speeds of a machine from measured steps: the numbers of a `Speeds` under which plans take as long as runs did.

Least squares on logarithms, damped (Levenberg and Marquardt), so that every row counts by its share and not by its
seconds. What few rows cannot tell stays where it was assumed: each number is held by how well it was known before. A
row that no speed explains, of a run that was disturbed, pulls no harder than one that is twice as far off as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

from swift_plan.timing import Speeds

UNSURE: Mapping[str, float] = {
    "matmul": 0.3, "narrow": 1.0, "memory": 0.5, "link": 0.7, "network": 0.7, "latency": 1.0, "layer": 1.0,
    "launch": 1.0, "step": 1.0,
}  # fmt: skip
"""How far each number may be off before anything was measured, as a logarithm: 0.7 is a factor of 2."""
USUAL = 0.08
"""The relative error of a time that counts as much as one of `UNSURE`."""
_FAR = 2.0
"""Errors beyond so many times the usual one pull no harder."""
_SMALL = 1e-4
_FEW, _MANY = 12, 60
"""Steps of each beginning, and of the best one."""

Vector = list[float]


@dataclass(frozen=True)
class MeasuredStep:
    """A step that was measured, and how long it would take at other speeds."""

    predict: Callable[[Speeds], float]
    """Seconds of the step."""
    seconds: float
    name: str = ""

    def error(self, calibration: Speeds) -> float:
        """Return by which share of what was measured the prediction is too long, or too short below 0."""
        return self.predict(calibration) / self.seconds - 1


def fit(rows: Sequence[MeasuredStep], start: Speeds | None = None, unsure: Mapping[str, float] = UNSURE) -> Speeds:
    """Return the speeds that explain the rows; `start` is what holds where they say nothing.

    Where the device decides how long a layer takes, the host's number moves nothing, and the other way round: so the
    search also begins with a slower and with a faster host, and the best end counts.
    """
    begun = start or Speeds()
    far = 1.5 * unsure.get("launch", 0.0)
    ends = [Fit(rows, begun, unsure, {"launch": by} if by else {}) for by in sorted({0.0, far, -far})]
    for end in ends:
        end.settle(_FEW)
    best = min(ends, key=lambda end: end.cost)
    best.settle(_MANY)
    return best.calibration


class Fit:
    """One search for the speeds, step by step."""

    def __init__(
        self, rows: Sequence[MeasuredStep], start: Speeds, unsure: Mapping[str, float], moved: Mapping[str, float]
    ) -> None:
        self.rows, self.start, self.unsure = rows, start, unsure
        self._names = tuple(unsure)
        self._at: Vector = [moved.get(name, 0.0) for name in self._names]
        self._residuals = self._errors(self._at)
        self.cost = _cost(self._residuals)
        self._damping = 1e-2

    @property
    def calibration(self) -> Speeds:
        """Return the best speeds so far."""
        return self._moved(self._at)

    def settle(self, most: int) -> None:
        """Go on until nothing is gained, or for so many steps."""
        for _ in range(most):
            if not self._improve():
                return

    def _improve(self) -> bool:
        """Go one step; return whether another one may help."""
        slopes = self._slopes()
        weights = [1.0 if abs(error) <= _FAR else _FAR / abs(error) for error in self._residuals]
        sizes = range(len(self._names))
        curvature = [
            [sum(w * a * b for w, a, b in zip(weights, slopes[i], slopes[j], strict=True)) for j in sizes]
            for i in sizes
        ]
        pull = [sum(w * a * r for w, a, r in zip(weights, slopes[i], self._residuals, strict=True)) for i in sizes]
        while self._damping < 1e8:
            damped = [
                [value * (1 + self._damping * (i == j)) for j, value in enumerate(row)]
                for i, row in enumerate(curvature)
            ]
            step = solved(damped, pull)
            there = [at - min(1.0, max(-1.0, by)) for at, by in zip(self._at, step, strict=True)]
            residuals = self._errors(there)
            cost = _cost(residuals)
            if cost < self.cost:
                gained = self.cost - cost
                self._at, self._residuals, self.cost = there, residuals, cost
                self._damping = max(self._damping / 3, 1e-9)
                return gained > _SMALL
            self._damping *= 4
        return False

    def _moved(self, at: Sequence[float]) -> Speeds:
        values = {name: getattr(self.start, name) * exp(by) for name, by in zip(self._names, at, strict=True)}
        return replace(self.start, **values)

    def _errors(self, at: Sequence[float]) -> Vector:
        calibration = self._moved(at)
        errors = [log(row.predict(calibration) / row.seconds) / USUAL for row in self.rows]
        return errors + [by / self.unsure[name] for name, by in zip(self._names, at, strict=True)]

    def _slopes(self) -> list[Vector]:
        slopes = []
        for index in range(len(self._names)):
            moved_values = list(self._at)
            moved_values[index] += _SMALL
            slopes.append(
                [(new - old) / _SMALL for new, old in zip(self._errors(moved_values), self._residuals, strict=True)]
            )
        return slopes


def _cost(errors: Sequence[float]) -> float:
    return sum(e * e / 2 if abs(e) <= _FAR else _FAR * abs(e) - _FAR * _FAR / 2 for e in errors)


def solved(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> Vector:
    """Return x of `matrix` x = `right`, for a matrix that is symmetric and positive (Gauss, largest pivot first)."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda index: abs(rows[index][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for below in rows[column + 1 :]:
            factor = below[column] / rows[column][column]
            for index in range(column, size + 1):
                below[index] -= factor * rows[column][index]
    found = [0.0] * size
    for index in reversed(range(size)):
        known = sum(rows[index][other] * found[other] for other in range(index + 1, size))
        found[index] = (rows[index][size] - known) / rows[index][index]
    return found

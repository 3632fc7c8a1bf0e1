"""Interface of planners, which choose backend and layout of a run before it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Basis = Literal["counted", "traced", "measured", "assumed"]
"""What a planned figure rests on: arithmetic of sizes, a step without values, something that ran here, usual speeds."""


@dataclass(frozen=True)
class ChosenPlan:
    """Backend and layout that a planner has chosen for a run.

    - `flags`: To be added to what was typed: backend, layout, micro-batch.
    - `reason`: Why, for the user: a line, or several.
    """

    flags: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class ExpectedMemory:
    """Memory that the fullest process of a run is expected to take.

    - `high_bytes`: The bounds between which it is expected.
    - `capacity_bytes`: What its device has.
    - `terms`: Bytes by name, the peak as a sum.
    - `seconds`: Of a step, where the device's speed is known.
    - `basis`: What the peak rests on.
    """

    peak_bytes: float
    low_bytes: float
    high_bytes: float
    capacity_bytes: float
    terms: Mapping[str, float] = field(default_factory=dict)
    device: str = ""
    seconds: float | None = None
    basis: Basis = "counted"

    @property
    def fits(self) -> bool:
        """Return whether there is enough even at the upper bound."""
        return self.high_bytes <= self.capacity_bytes


class Planner(Protocol):
    """One planner. The entry point in `swift.planners` names a class that is called without arguments."""

    def choose(self, argv: Sequence[str], command: str, processes: int, machines: int) -> ChosenPlan:
        """Choose what `argv`, the flags of `swift COMMAND`, leave open, for so many processes on each machine.

        Called for `--backend auto`, and for `--parallel auto` where a backend is among the words. Raise a `SwiftError`
        that says what comes nearest where nothing fits. Do not import torch.

        A planner may have a method `foresee(run, words, command)`, with the same arguments as `choose`: called before
        the weights of a run are read, it returns a warning where the run will lack memory, and otherwise None.

        It may have a method `expect(run, words, command)`, which returns an `ExpectedMemory` within a few tenths of a
        second, or None: forms ask at every change, to show whether a run fits while it is being typed.

        An observer of the same name that the distribution brings is told of every run, whether `--report_to` names it
        or not, so that runs are compared with their plans.

        With a method `lacking(run, peak)` it explains a run that has run out of memory, whose process had so many bytes
        at most: it returns lines that are shown below the error, or None.
        """

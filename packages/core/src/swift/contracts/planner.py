"""Interface of planners, which choose backend and layout of a run before it begins.

Importable without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class ChosenPlan:
    """Backend and layout that a planner has chosen for a run."""

    flags: tuple[str, ...]
    """To be added to what was typed: backend, layout, micro-batch."""
    reason: str
    """Why, for the user: a line, or several."""


class Planner(Protocol):
    """One planner. The entry point in `swift.planners` names a class that is called without arguments."""

    def choose(self, words: Sequence[str], verb: str, processes: int, machines: int) -> ChosenPlan:
        """Choose what `words`, the flags of `swift VERB`, leave open, for so many processes on each machine.

        Called for `--backend auto`, and for `--parallel auto` where a backend is among the words. Raise a `SwiftError`
        that says what comes nearest where nothing fits. Do not import torch.

        A planner may have a method `foresee(run, words, verb)` as well, with the same words as `choose`: called before
        the weights of a run are read, it returns a warning where the run will lack memory, and otherwise None.
        """

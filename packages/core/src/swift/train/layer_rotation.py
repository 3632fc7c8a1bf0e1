"""Weights that take turns: those that have theirs require a gradient, and an optimizer is made for them alone.

turns = Turns.of(run, model)                 None where a tuner trains the same weights in all steps
if turns is not None and turns.take(step):   before a step: other weights than in the one before
    ... make the optimizer anew: it keeps no state of weights that wait ...
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from swift.checkpoint import before_update
from swift.data.store import hash_of
from swift.models.names import canonical_parameters
from swift.processes.comms import Comms
from swift.tuners.selected import SelectedTuner, tuner_of

if TYPE_CHECKING:
    from swift.contracts import Run

_COMPARED = 1000
"""Steps of which processes compare beforehand who has a turn."""


class Turns:
    """The weights that a tuner leaves to train, and which of them have their turn."""

    def __init__(self, tuner: SelectedTuner, model: torch.nn.Module, seed: int) -> None:
        self._tuner = tuner
        self._seed = seed
        self._parameters: list[tuple[list[str], torch.nn.Parameter]] = [
            ([piece.name for piece in pieces], parameter)
            for pieces, parameter in canonical_parameters(model)
            if parameter.requires_grad
        ]
        self._names = [name for names, _ in self._parameters for name in names]
        self._now: frozenset[str] | None = None

    @classmethod
    def of(cls, run: Run, model: torch.nn.Module) -> Turns | None:
        """Return the turns of the run's tuner, if its weights take any; nobody has one before the first `take`."""
        tuner = tuner_of(run.config.tuner)
        if not tuner.rotates_layers:
            return None
        turns = cls(tuner, model, run.config.train.seed)
        turns._compare(run)
        return turns

    def take(self, step: int) -> bool:
        """Give the weights of a step, counted from 0, their turn; return whether these are others than before.

        Gradients of all weights are dropped then.
        """
        due = self._due(step)
        if due == self._now:
            return False
        before_update()
        for names, parameter in self._parameters:
            parameter.requires_grad_(names[0] in due)
            parameter.grad = None
        self._now = due
        return True

    def goes_on(self, step: int) -> bool:
        """Return whether the weights of a step had their turn in the step before, whose optimizer state they keep."""
        return step > 0 and self._due(step) == self._due(step - 1)

    def _compare(self, run: Run) -> None:
        """Refuse a tuner that lets other weights have their turn in another process: they would wait for each other."""
        steps = range(min(run.total_steps, _COMPARED))
        mine = hash_of("\n".join(" ".join(sorted(self._due(step))) for step in steps))
        comms = Comms(run.timeout)
        try:
            everyone = comms.gather(mine)
        finally:
            comms.close()
        if len(set(everyone)) > 1:
            raise self._tuner.wrong("trained", "the same weights in all processes", "others in each")

    def _due(self, step: int) -> frozenset[str]:
        due: Collection[str] = self._tuner.trained(self._names, step, self._seed)
        split = [names for names, _ in self._parameters if len({name in due for name in names}) > 1]
        if split:
            raise self._tuner.wrong("trained", "all weights of one tensor in memory, or none", split[0][0])
        return frozenset(due)

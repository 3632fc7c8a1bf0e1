"""Layers that are trained in rotation: those of a step require a gradient, and an optimizer is made for them alone.

rotation = LayerRotation.of(run, model)      None where a tuner trains the same weights in all steps
if rotation is not None and rotation.activate(step):   before a step: other weights than in the one before
... make the optimizer anew: it keeps no state of the other weights ...
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from swift.checkpoint import before_update
from swift.data.store import hash_of
from swift.models.names import canonical_parameters
from swift.plugins.tuner import SelectedTuner, tuner_of
from swift.processes.comms import Comms

if TYPE_CHECKING:
    from swift.contracts import Run

_COMPARED = 1000
"""Steps for which processes compare beforehand which weights are trained."""


class LayerRotation:
    """The weights that a tuner trains, and which of them are trained in a step."""

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
    def of(cls, run: Run, model: torch.nn.Module) -> LayerRotation | None:
        """Return the rotation of the run's tuner, if it has one; no step is active before the first `activate`."""
        tuner = tuner_of(run.config.tuner)
        if not tuner.rotates_layers:
            return None
        rotation = cls(tuner, model, run.config.train.seed)
        rotation._compare(run)
        return rotation

    def activate(self, step: int) -> bool:
        """Train the weights of a step, counted from 0; return whether these are others than before.

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

    def keeps_state(self, step: int) -> bool:
        """Return whether a step trains the weights of the step before, whose optimizer state they keep."""
        return step > 0 and self._due(step) == self._due(step - 1)

    def _compare(self, run: Run) -> None:
        """Refuse a tuner that trains other weights in another process: processes would wait for each other."""
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

"""An optimizer and a tuner that no package brings, found through entry points as a third party's are.

The optimizer is momentum, with a slot of its own. Smooth on purpose: where an update takes signs, rounding alone moves
weights by whole steps. The tuner trains every second weight for some steps, then the others.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from swift.config.limits import BelowOne
from swift.config.options import Section
from swift.contracts import Reads, Slot, Trains, TunerContext

if TYPE_CHECKING:
    import torch

TUNER = "kit-turns"
TURN = 3
"""Steps that a turn takes."""
NAME = "kit-momentum"
CASE = "third party's optimizer"
MOMENTUM = 0.8
_KEPT: list[TemporaryDirectory[str]] = []
"""The distribution's folder, for as long as this process lives."""


class MomentumOptions(Section):
    """Options of the optimizer."""

    momentum: BelowOne = MOMENTUM


class Momentum:
    """v ← momentum · v + gradient; weight ← (1 - lr · decay) · weight - lr · v."""

    options_model = MomentumOptions
    reads = Reads.ELEMENTS
    slots = (Slot("velocity"),)

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of one value in fp32."""
        return 4.0

    def make(
        self, groups: list[dict[str, Any]], options: MomentumOptions, device: torch.device
    ) -> torch.optim.Optimizer:
        """Return the optimizer."""
        from swift_testing.momentum import TorchMomentum

        return TorchMomentum(groups, options.momentum)


class TurnsOptions(Section):
    """Options of the tuner: there are none."""


class EverySecond:
    """Trains every second weight, and those between them in the next turn."""

    options_model = TurnsOptions
    adapter = False
    learning_rate = 1e-3

    def needs(self, options: TurnsOptions) -> frozenset[str]:
        """Return that weights are trained in rotation."""
        return frozenset({Trains.ROTATION})

    def attach(self, model: torch.nn.Module, options: TurnsOptions, context: TunerContext) -> torch.nn.Module:
        """Return the model, all of which is trained some time."""
        return model.requires_grad_(True)

    def trained(self, names: Sequence[str], step: int, options: TurnsOptions, seed: int) -> Sequence[str]:
        """Return the weights that have their turn at a step, counted from 0."""
        return in_turn(names, step)


def in_turn(names: Sequence[str], step: int) -> Sequence[str]:
    """Return the names that have their turn at a step, counted from 0, in alphabetical order."""
    return sorted(names)[step // TURN % 2 :: 2]


@cache
def install() -> None:
    """Make both known to this process and to those that are forked from it."""
    folder = TemporaryDirectory(prefix="swift-kit-")
    _KEPT.append(folder)
    info = Path(folder.name) / "swift_kit_optimizer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: swift-kit-optimizer\nVersion: 1.0\n")
    points = f"[swift.optimizers]\n{NAME} = {__name__}:Momentum\n[swift.tuners]\n{TUNER} = {__name__}:EverySecond\n"
    (info / "entry_points.txt").write_text(points)
    sys.path.append(folder.name)

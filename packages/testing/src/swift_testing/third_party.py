"""An optimizer and a tuner that no package brings, found through entry points as a third party's are.

The optimizer is momentum, with a slot of its own. Smooth on purpose: where an update takes signs, rounding alone moves
weights by whole steps. The tuner trains every second weight for some steps, then the others.
"""

from __future__ import annotations

import atexit
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from swift.config.limits import BelowOne
from swift.config.options import Section
from swift.contracts import Reads, Slot, Trains, TunerContext

TUNER = "kit-turns"
TURN = 3
"""Steps that a turn takes."""
NAME = "kit-momentum"
CASE = "third party's optimizer"
MOMENTUM = 0.8


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
        return TorchMomentum(groups, options.momentum)


class TorchMomentum(torch.optim.Optimizer):
    """Keeps one `velocity` for each weight."""

    def __init__(self, groups: list[dict[str, Any]], momentum: float) -> None:
        super().__init__(groups, {"momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no closure here
        """Update each weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(weight)
                velocity = state["velocity"].mul_(group["momentum"]).add_(weight.grad)
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(velocity, alpha=-group["lr"])


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


def install() -> None:
    """Make both known to this process and to those that are forked from it."""
    install_plugins("swift-kit-optimizer", ("swift.optimizers", NAME, Momentum), ("swift.tuners", TUNER, EverySecond))


@cache
def install_plugins(distribution: str, *plugins: tuple[str, str, type[Any]]) -> None:
    """Make plugins (group, name, class) known to this process and to those that are forked from it."""
    site = Path(mkdtemp(prefix="swift-testing-plugins-"))
    atexit.register(shutil.rmtree, site, ignore_errors=True)
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\nRequires-Dist: swift-core>=0.1\n"
    (info / "METADATA").write_text(head)
    points = (f"[{group}]\n{name} = {kind.__module__}:{kind.__name__}\n" for group, name, kind in plugins)
    (info / "entry_points.txt").write_text("".join(points))
    sys.path.append(str(site))

"""An optimizer that no package brings, found through an entry point as a third party's is.

It is momentum, with a slot of its own. Smooth on purpose: where an update takes signs, rounding alone moves weights by
whole steps.
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
from swift.contracts import Reads, Slot

if TYPE_CHECKING:
    import torch

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
        from swift.testing.momentum import TorchMomentum

        return TorchMomentum(groups, options.momentum)


@cache
def install() -> None:
    """Make the optimizer known to this process and to those that are forked from it."""
    folder = TemporaryDirectory(prefix="swift-kit-")
    _KEPT.append(folder)
    info = Path(folder.name) / "swift_kit_optimizer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: swift-kit-optimizer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[swift.optimizers]\n{NAME} = {__name__}:Momentum\n")
    sys.path.append(folder.name)

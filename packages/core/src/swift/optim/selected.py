"""The selected optimizer, as far as it declares what it keeps. This module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.plugins.load import load_optimizer

if TYPE_CHECKING:
    from swift.config.sections import OptimSection
    from swift.contracts import Slot


def slots_of(optim: OptimSection) -> dict[str, Slot]:
    """Return what the optimizer of the `optim` section keeps for each weight, by name."""
    return {slot.name: slot for slot in load_optimizer(optim.name).object.slots}

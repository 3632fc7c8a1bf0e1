"""The selected optimizer, as far as it declares what it keeps and needs. This module does not import torch."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from swift.contracts import Slot
from swift.errors import ConfigError
from swift.installation import pip_install
from swift.plugins.load import load_optimizer

if TYPE_CHECKING:
    from swift.config.sections import OptimSection


def slots_of(optim: OptimSection) -> dict[str, Slot]:
    """Return what the optimizer of the `optim` section keeps for each weight, by name."""
    return {slot.name: slot for slot in load_optimizer(optim.name).object.slots}


def check_packages(optim: OptimSection) -> None:
    """Refuse an optimizer that needs a package which is not installed."""
    for package, requirement in getattr(load_optimizer(optim.name).object, "packages", {}).items():
        if find_spec(package) is None:
            raise ConfigError(
                f"optim.name {optim.name} needs {package}, which is not installed.",
                hint=f"Type: {pip_install(requirement)}   or choose --optim.name adamw",
            )

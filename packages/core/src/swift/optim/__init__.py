"""Learning-rate schedules and optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.optim.schedule import Schedule as Schedule

__getattr__ = lazy_names(__name__)

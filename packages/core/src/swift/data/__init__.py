from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.data.pipeline import Prepared as Prepared

__getattr__ = lazy_names(
    __name__,
    {
        "pipeline": "Prepared",
    },
)

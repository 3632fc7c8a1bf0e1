"""Configuration of a run: its sections, and how a command line, a file or keywords become one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.config.capabilities import FEATURE_SWITCHES as FEATURE_SWITCHES

__getattr__ = lazy_names(
    __name__,
    {
        "capabilities": "FEATURE_SWITCHES",
    },
)

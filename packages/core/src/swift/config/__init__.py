"""Configuration of a run: its sections, and how a command line, a file or keywords become one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.config.capabilities import FEATURE_SWITCHES as FEATURE_SWITCHES
    from swift.config.compat.unsupported import ENGINE_OPTIONS as ENGINE_OPTIONS
    from swift.config.tasks import problem_type_of as problem_type_of

__getattr__ = lazy_names(
    __name__,
    {
        "capabilities": "FEATURE_SWITCHES",
        "compat.unsupported": "ENGINE_OPTIONS",
        "tasks": "problem_type_of",
    },
)

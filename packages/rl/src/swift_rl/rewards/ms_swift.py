"""The modules that ms-swift's plugin files import, for the time and in the process that runs such a file."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

ORMS: dict[str, Any] = {}
"""Name → class or function that a plugin registered."""


class ORM:
    """Base of the classes that ms-swift's plugins register in `orms`."""

    def __init__(self, args: Any = None, **_: Any) -> None:
        self.args = args

    def __call__(self, **columns: Any) -> list[float]:
        """Return a reward for each completion."""
        raise NotImplementedError


class AsyncORM(ORM):
    """Base of those that are coroutines."""

    async def __call__(self, **columns: Any) -> list[float]:  # type: ignore[override]  # as ms-swift's are
        """Return a reward for each completion."""
        raise NotImplementedError


def provide() -> None:
    """Make `from swift.rewards import ORM, AsyncORM, orms` work in this process, and ms-swift's other names for it."""
    models = {"rm_plugins": {}, "DefaultRMPlugin": object}
    rewards = {"ORM": ORM, "AsyncORM": AsyncORM, "orms": ORMS, **models}
    loggers = {"get_logger": lambda *_, **__: logging.getLogger("swift"), "to_device": lambda value, *_: value}
    for name, members in (
        ("swift.rewards", rewards),
        ("swift.rewards.orm", rewards),
        ("swift.rewards.rm_plugin", models),
        ("swift.plugin", rewards),
        ("swift.plugin.orm", rewards),
        ("swift.utils", loggers),
        ("swift.utils.logger", loggers),
    ):
        module = ModuleType(name, "Stands in for ms-swift's module of this name, for plugin files.")
        vars(module).update(members, __path__=[])
        sys.modules[name] = module

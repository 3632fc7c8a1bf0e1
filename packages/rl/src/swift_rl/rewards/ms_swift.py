"""The modules that ms-swift's plugin files import, for the time and in the process that runs such a file."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from swift.contracts import RewardItem
from swift_rl.rewards.mathematics import AccuracyReward

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


class MathAccuracy(ORM):
    """The reward `accuracy` under ms-swift's name, as schedulers call it: 0 too where a solution cannot be read."""

    def __init__(self, args: Any = None, **more: Any) -> None:
        super().__init__(args, **more)
        self._reward = AccuracyReward()

    def __call__(self, completions: Sequence[str], solution: Sequence[str], **_: Any) -> list[float]:  # type: ignore[override]  # as ms-swift's
        """Return 1 for each completion that is equal to its solution mathematically, and 0 for others."""
        pairs = zip(completions, solution, strict=True)
        items = [RewardItem((), completion, columns={"solution": known}) for completion, known in pairs]
        return [value or 0.0 for value in self._reward.score(items)]


def remove_response(messages: list[dict[str, Any]]) -> Any:
    """Remove the response that ends a conversation and return it; None if there is none."""
    return messages.pop()["content"] if messages and messages[-1]["role"] == "assistant" else None


def stand_in(name: str, members: Mapping[str, Any]) -> None:
    """Put a module with these members in the place of one of ms-swift."""
    module = ModuleType(name, "Stands in for ms-swift's module of this name, for plugin files.")
    vars(module).update(members, __path__=[])
    sys.modules[name] = module


def provide() -> None:
    """Make `from swift.rewards import ORM, AsyncORM, orms` work in this process, and ms-swift's other names for it."""
    models = {"rm_plugins": {}, "DefaultRMPlugin": object}
    rewards = {"ORM": ORM, "AsyncORM": AsyncORM, "MathAccuracy": MathAccuracy, "orms": ORMS, **models}
    loggers = {"get_logger": lambda *_, **__: logging.getLogger("swift"), "to_device": lambda value, *_: value}
    loggers["remove_response"] = remove_response
    for name, members in (
        ("swift.rewards", rewards),
        ("swift.rewards.orm", rewards),
        ("swift.rewards.rm_plugin", models),
        ("swift.plugin", rewards),
        ("swift.plugin.orm", rewards),
        ("swift.utils", loggers),
        ("swift.utils.logger", loggers),
    ):
        stand_in(name, members)

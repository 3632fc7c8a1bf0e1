"""Runs the reward files of a user in a process of its own, before a run begins, to learn what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swift.errors import ConfigError
from swift_rl.rewards.process import ask_once


@dataclass(frozen=True)
class Described:
    """The contents of reward files."""

    registered: tuple[str, ...] = ()
    """The names in `orms`."""
    rewards: tuple[Mapping[str, Any] | None, ...] = ()
    """`wants` and `batched` of each requested reward; None for one that is not registered."""


def describe_files(files: Sequence[str], rewards: Sequence[Mapping[str, Any]]) -> Described:
    """Run plugin files, and the files of functions, and return what is in them; raise where they fail."""
    if not files and not rewards:
        return Described()
    reply = ask_once({"do": "describe", "files": list(files), "rewards": list(rewards)})
    named = " or ".join(dict.fromkeys([*files, *(each["file"] for each in rewards if each["kind"] == "function")]))
    if "failure" in reply:
        output = "\n".join(filter(None, (reply["output"], reply.get("traceback"))))
        raise ConfigError(f"{named} failed to load: {reply['failure']}\n{output}".rstrip())
    return Described(tuple(reply["names"]), tuple(reply["rewards"]))

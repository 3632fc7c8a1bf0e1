"""Runs the reward files of a user in a process of its own, before a run begins, to learn what is in them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift.errors import ConfigError
from swift_rl.rewards.process import LOADING, WorkerProcess


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
    with tempfile.TemporaryDirectory(prefix="swift-rewards-", ignore_cleanup_errors=True) as home:
        worker: WorkerProcess[str] = WorkerProcess(Path(home, "describe"), memory=0)
        try:
            worker.give("describe", {"do": "describe", "files": list(files), "rewards": list(rewards)}, LOADING)
            reply = _reply(worker)
        finally:
            worker.kill()
    named = " or ".join(dict.fromkeys([*files, *(each["file"] for each in rewards if each["kind"] == "function")]))
    if "failure" in reply:
        output = "\n".join(filter(None, (reply["output"], reply["traceback"])))
        raise ConfigError(f"{named} failed to load: {reply['failure']}\n{output}".rstrip())
    return Described(tuple(reply["names"]), tuple(reply["rewards"]))


def _reply(worker: WorkerProcess[str]) -> dict[str, Any]:
    while not worker.readable(0.25):
        worker.drain()
        if time.monotonic() > worker.deadline:
            return {"failure": f"it took longer than {LOADING:g} s", "output": worker.output(), "traceback": ""}
    reply = worker.reply()
    if reply is None:
        return {"failure": f"the process that ran it {worker.bury()}", "output": worker.kept(), "traceback": ""}
    return {**reply, "output": worker.output()}

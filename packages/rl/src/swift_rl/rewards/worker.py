"""The process that computes rewards: `python -m swift_rl.rewards.worker CHANNEL`, started by `process.py`.

It takes one task after the other from its channel. Whatever a reward does to it, it may be killed at any time. It
imports neither torch nor numpy of its own accord.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from swift_rl.rewards.channel import receive, send
from swift_rl.rewards.verdicts import checked, in_one_line, traceback_text

if TYPE_CHECKING:
    from swift_rl.environments.hosted import HostedEpisodes


def main() -> None:
    """Perform tasks until the run ends."""
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        _limit(float(sys.argv[2]))
        threading.Thread(target=_end_with_the_run, args=(os.getppid(),), daemon=True).start()
        rewards: dict[str, Any] = {}
        while (task := receive(channel)) is not None:
            if task["do"] in ("describe", "score"):
                send(channel, _describe(task) if task["do"] == "describe" else _score(channel, rewards, task))
            else:
                _play(channel, task)


def _score(channel: socket.socket, rewards: dict[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    from swift.contracts import RewardItem
    from swift_rl.rewards.loading import load_reward

    key = json.dumps(task["reward"], sort_keys=True)
    started = time.monotonic()
    try:
        if key not in rewards:
            rewards[key] = load_reward(task["reward"])
        send(channel, {"loaded": True})
        _limit_cpu(task["seconds"])
        items = [RewardItem(**item) for item in task["items"]]
        started = time.monotonic()
        reply: dict[str, Any] = {"values": checked(rewards[key].score(items), len(items))}
    except BaseException as problem:  # SystemExit too: this process decides when it ends
        reply = {"failure": in_one_line(problem), "traceback": traceback_text(problem)}
    seconds = time.monotonic() - started
    _flush()
    return {**reply, "seconds": seconds}


def _describe(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names that plugin files register, and what each of some rewards in files wants."""
    from swift_rl.rewards.loading import load_reward, registered

    try:
        names = sorted(registered(task["files"]))
        rewards = []
        for each in task["rewards"]:
            reward = None if each["kind"] == "registered" and each["name"] not in names else load_reward(each)
            rewards.append(reward and {"wants": reward.wants, "batched": reward.batched})
        reply: dict[str, Any] = {"names": names, "rewards": rewards}
    except BaseException as problem:
        reply = {"failure": in_one_line(problem), "traceback": traceback_text(problem)}
    _flush()
    return reply


def _play(channel: socket.socket, task: Mapping[str, Any]) -> None:
    """Do what is asked of an environment."""
    episodes = _episodes()
    if task["do"] == "close":
        episodes.close(task["keys"], task["step"])
        return

    def begun() -> None:
        send(channel, {"loaded": True})
        _limit_cpu(task["seconds"])

    reply = episodes.describe(task) if task["do"] == "describe_environment" else episodes.reply(task, begun)
    _flush()
    send(channel, reply)


@cache
def _episodes() -> HostedEpisodes:
    from swift_rl.environments.hosted import HostedEpisodes

    return HostedEpisodes()


def _flush() -> None:
    """Flush what was printed before the reply is sent."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed or replaced by the reward
            continue


def _limit(gigabytes: float) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if gigabytes:
        most = int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_cpu(seconds: float) -> None:
    """End this process, and the ones that it starts, after as much computing as one call can do in its time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime + seconds * (os.cpu_count() or 1)) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _end_with_the_run(run: int) -> None:
    while os.getppid() == run:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()

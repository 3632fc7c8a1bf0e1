"""Two processes that alternate step by step: one end starts a step, the other waits for it."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ORDER = "SWIFT_BENCHMARKS_PEER"
"""Environment variable of the observer `peer-in-turn`: module, interpreter and order of the peer, as JSON."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
CLOCKS: dict[str, Callable[[], float]] = {"seconds": time.perf_counter, "cpu": time.process_time}


class Peer:
    """A module of the benchmarks in a process of its own, which waits before every step.

    Its last argument is the name of a JSON file with its order, which holds a `folder` of its own.
    """

    def __init__(
        self,
        module: str,
        order: Mapping[str, Any],
        *,
        python: str = sys.executable,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="swift-benchmarks-")
        folder = Path(self._folder.name)
        (folder / "order.json").write_text(json.dumps({**order, "folder": self._folder.name}))
        self._errors = folder / "errors.txt"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [python, "-m", module, str(folder / "order.json")], env={**os.environ, **(variables or {})},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1,
            )  # fmt: skip
        self._ready = False
        atexit.register(self.close)

    def wait(self) -> None:
        """Return once it is ready for its first step."""
        if not self._ready:
            self._read()
            self._ready = True

    def step(self) -> dict[str, Any]:
        """Let it make its next step; returns what it reports of it."""
        self.wait()
        assert self._process.stdin
        self._process.stdin.write("go\n")
        return self._read()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("\n".join(self._errors.read_text().splitlines()[-15:]))
        reported: dict[str, Any] = json.loads(line)
        return reported


class Turn:
    """A peer's end of the line: reports a step, and waits until it may make the next."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what a library prints goes to the errors

    def end(self, reported: Mapping[str, Any]) -> None:
        """Return when the next step may begin; after the last one the process ends."""
        self._out.write(json.dumps(reported) + "\n")
        if not sys.stdin.readline():
            sys.exit()


def steps_in_turn(module: str, orders: Mapping[str, Mapping[str, Any]], count: int) -> dict[str, list[dict[str, Any]]]:
    """Return the steps of several sides of a comparison, which alternate; each is a process with one thread."""
    alone = {**ONE_THREAD, "HF_HUB_OFFLINE": "1", "SWIFT_PLUGINS": "swift-rl"}
    peers = {side: Peer(module, order, variables=alone) for side, order in orders.items()}
    for peer in peers.values():
        peer.wait()
    made: dict[str, list[dict[str, Any]]] = {side: [] for side in peers}
    for _ in range(count):
        for side, peer in peers.items():
            made[side].append(peer.step())
    for peer in peers.values():
        peer.close()
    return made


def read_order() -> dict[str, Any]:
    """Return the order that this process was started with."""
    order: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return order


def common_arguments(order: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the arguments of all trainers that build on transformers' have in common."""
    return {
        "output_dir": order["folder"], "learning_rate": order["learning_rate"], "lr_scheduler_type": "constant",
        "bf16": False, "use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip

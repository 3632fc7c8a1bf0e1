"""Swift and a trainer of another library in turn, each in a process of its own, on the same batches."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.hookspecs import hookimpl

if TYPE_CHECKING:
    from swift.contracts import Run, StepResult
    from swift.data.batch import Batch

ORDER = "SWIFT_BENCHMARKS_PEER"
"""Environment variable: the order of `benchmarks.peer_trainers`, and the interpreter that it is for, as JSON."""


class TrainerInTurn:
    """After every step of swift the other trainer makes one; tokens, losses, seconds and CPU seconds are noted.

    The time of a step is all that passes between two turns of the other: data, step, logging.
    """

    @hookimpl(wrapper=True)
    def swift_shard(self) -> Generator[None, Any, Any]:
        state = yield
        self._peer = Peer()
        self._since = _now()
        return state

    @hookimpl(wrapper=True)
    def swift_train_step(self, run: Run, batch: Batch) -> Generator[None, StepResult, StepResult]:
        result = yield
        own = {"tokens": batch.tokens, "loss": result.loss, **_passed(self._since)}
        begin = time.perf_counter()
        other = self._peer.step()
        turn = {"swift": own, "other": {**other, "seconds": time.perf_counter() - begin}}
        with (run.folder / "turns.jsonl").open("a") as file:
            file.write(json.dumps(turn) + "\n")
        self._since = _now()
        return result


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _passed(since: tuple[float, float]) -> dict[str, float]:
    now = _now()
    return {"seconds": now[0] - since[0], "cpu": now[1] - since[1]}


class Peer:
    """The other side of `benchmarks.peer_trainers`; waits until the trainer is ready for its first step."""

    def __init__(self) -> None:
        order = json.loads(os.environ[ORDER])
        self._folder = tempfile.TemporaryDirectory(prefix="swift-benchmarks-")
        place = Path(self._folder.name)
        (place / "order.json").write_text(json.dumps({**order, "folder": self._folder.name}))
        self._errors = place / "errors.txt"
        command = [order["python"], "-m", "benchmarks.peer_trainers", str(place / "order.json")]
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
            )
        atexit.register(self._close)
        self._read()

    def step(self) -> dict[str, Any]:
        """Let it train on its next batch; returns the loss, the tokens without padding, and CPU seconds."""
        assert self._process.stdin
        self._process.stdin.write("go\n")
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("\n".join(self._errors.read_text().splitlines()[-15:]))
        said: dict[str, Any] = json.loads(line)
        return said

    def _close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

"""Swift and a trainer of another library in turn, each in a process of its own, on the same batches."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from benchmarks.peer import Peer
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
        order = json.loads(os.environ[ORDER])
        self._peer = Peer("benchmarks.peer_trainers", order, python=order["python"])
        self._peer.wait()
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

"""Observers of runs about pictures: a loop that takes turns, stand-ins in every other step, and what is decoded."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from benchmarks.facts import cpu_seconds, peak_memory_mib
from benchmarks.peer import Peer
from benchmarks.peer_in_turn import ORDER
from swift.hookspecs import hookimpl

if TYPE_CHECKING:
    from swift.contracts import Run, RunSummary, StepResult
    from swift.data.batch import Batch


class PictureLoopInTurn:
    """After every step of swift the loop of `benchmarks.picture_loop` makes one, in processes of its own.

    CPU seconds of swift are those of all its threads, also for what they decode while the other has its turn.
    """

    @hookimpl(wrapper=True)
    def swift_shard(self) -> Generator[None, Any, Any]:
        state = yield
        self._peer = Peer("benchmarks.picture_loop", json.loads(os.environ[ORDER]))
        self._peer.wait()
        self._cpu = time.process_time()
        return state

    @hookimpl(wrapper=True)
    def swift_train_step(self, run: Run, batch: Batch) -> Generator[None, StepResult, StepResult]:
        result = yield
        now = time.process_time()
        own = {
            "tokens": batch.tokens,
            "pictures": sum(map(len, batch.media_references())),
            "loss": result.loss,
            "cpu": now - self._cpu,
            "peak_mib": peak_memory_mib(),
        }
        self._cpu = now
        with (run.folder / "turns.jsonl").open("a") as file:
            file.write(json.dumps({"swift": own, "other": self._peer.step()}) + "\n")
        return result


class StandInsInTurn:
    """Puts a stand-in into every micro-batch without a picture in every other step, and notes CPU seconds of all."""

    def __init__(self) -> None:
        self._steps: list[dict[str, Any]] = []

    @hookimpl(wrapper=True)
    def swift_train_step(self, run: Run, batch: Batch) -> Generator[None, StepResult, StepResult]:
        stands_in = batch.step % 2 == 1
        if stands_in:
            object.__setattr__(batch, "touch", batch.with_stand_ins().touch)
        begin = time.process_time()
        result = yield
        lacking = sum(not held for held in batch.media_references())
        step = {"stands_in": stands_in, "lacking": lacking, "cpu": time.process_time() - begin}
        self._steps.append({**step, "micro_batches": len(batch)})
        if batch.step + 1 == run.total_steps:
            (run.folder / "stand_ins.json").write_text(json.dumps(self._steps))
        return result


class DecodedWatch:
    """How many pictures were read before the first step of a run ended, and in all of it; and when that step ended."""

    def __init__(self) -> None:
        self._read = 0
        self._first: dict[str, float] = {}

    @hookimpl(wrapper=True)
    def swift_setup(self) -> Generator[None, Any, Any]:
        from swift.models.media_processor import MediaProcessor

        plain = MediaProcessor.open

        def counted(pictures: Any, reference: Any) -> Any:
            self._read += 1
            return plain(pictures, reference)

        MediaProcessor.open = counted  # type: ignore[method-assign, assignment]
        return (yield)

    @hookimpl(wrapper=True)
    def swift_train_step(self, batch: Batch) -> Generator[None, StepResult, StepResult]:
        result = yield
        if not self._first:
            self._first = {"step": batch.step, "cpu": cpu_seconds(), "read": self._read}
        return result

    @hookimpl(trylast=True)
    def swift_run_end(self, run: Run, summary: RunSummary) -> None:
        content = {"first": self._first, "read": self._read}
        with (run.folder / "decoded.jsonl").open("a") as file:
            file.write(json.dumps(content) + "\n")

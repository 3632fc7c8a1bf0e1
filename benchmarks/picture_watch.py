"""Observers of runs about pictures: a loop that takes turns, stand-ins in every other step, and what is decoded."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.facts import cpu_seconds, peak_memory_mib
from benchmarks.peer import Peer
from benchmarks.peer_in_turn import ORDER
from swift.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Collection

    from swift.contracts import Run, RunSummary, StepResult
    from swift.data.batch import Batch
    from swift.data.samples import Segment

OWN, PEERS = "swift's", "LLaMA-Factory's"
WHOSE = ("", OWN, PEERS)
"""Whose stand-ins a step has."""


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


class LargerStandIns:
    """A reader of media whose stand-in is as large as that of LLaMA-Factory's collator: a picture of 64×64."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def __call__(self, *given: Any) -> Any:
        return self._reader(*given)

    def stand_in(self, kinds: Collection[str]) -> Segment:
        small = (self._reader._pictures.smallest(kind) for kind in sorted(kinds))
        segment: Segment = self._reader._blank_segment([replace(each, width=64, height=64) for each in small], ())
        return segment


class StandInsInTurn:
    """Puts stand-ins into micro-batches without a picture, and notes CPU seconds of all steps.

    Steps take turns: none, swift's, and one as large as LLaMA-Factory's.
    """

    def __init__(self) -> None:
        self._steps: list[dict[str, Any]] = []

    @hookimpl(wrapper=True)
    def swift_train_step(self, run: Run, batch: Batch) -> Generator[None, StepResult, StepResult]:
        stands_in = WHOSE[batch.step % len(WHOSE)]
        if stands_in:
            batch.touch = batch.with_stand_ins().touch
        if stands_in == PEERS:
            batch.media_reader = LargerStandIns(batch.media_reader)
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

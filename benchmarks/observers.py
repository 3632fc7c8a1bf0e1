"""Observers that measure a run from inside: plugins like anyone's, chosen with `--report_to`.

`benchmarks.commands` puts them on the path of the `swift` commands that it starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.commands import ROWS
from benchmarks.facts import peak_memory_mib
from swift.hookspecs import hookimpl

if TYPE_CHECKING:
    from benchmarks.bare_loop import BareLoop
    from swift.contracts import Run, RunSummary, StepRecord, StepResult
    from swift.data.batch import Batch


class BareLoopInTurn:
    """After every step of swift the bare loop makes one, in the same process; both are timed.

    Swift's time is all that passes between two turns of the bare loop: data, step, other observers. Padded, the
    bare loop trains on the very batch that swift did; otherwise on batches of its own over the same chats.
    """

    FILE = "turns.jsonl"

    @hookimpl(trylast=True)
    def swift_run_start(self, run: Run) -> None:
        from benchmarks.bare_loop import BareLoop

        config = run.config
        self._bare = BareLoop(config.model.path or "", config.data.train[0], config.learning_rate)
        self._own = _shuffled(self._bare) if config.data.packing else None
        self._since = time.perf_counter()

    @hookimpl(wrapper=True)
    def swift_train_step(self, batch: Batch) -> Generator[None, StepResult, StepResult]:
        self._seen = [sample.sample_id for row in batch.rows for sample in row]
        return (yield)

    @hookimpl(trylast=True)
    def swift_step_end(self, run: Run, record: StepRecord) -> None:
        seconds = time.perf_counter() - self._since
        batch = self._seen if self._own is None else next(self._own)
        begin = time.perf_counter()
        loss = self._bare.step(batch)
        turn = {
            "swift": {"tokens": record.tokens, "seconds": seconds, "loss": record.result.loss},
            "bare": {"tokens": self._bare.tokens(batch), "seconds": time.perf_counter() - begin, "loss": loss},
            "samples": self._seen,
        }
        _append(run, self.FILE, turn)
        self._since = time.perf_counter()


def _shuffled(bare: BareLoop) -> Iterator[list[int]]:
    import torch

    source = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(bare.samples), generator=source).tolist()
        yield from (order[start : start + ROWS] for start in range(0, len(order) - ROWS + 1, ROWS))


class Stopwatch:
    """When each phase of a run begins and ends, by the wall clock, and its peak memory."""

    FILE = "stopwatch.json"

    def __init__(self) -> None:
        self._times: dict[str, float] = {"plugins": time.time()}

    @hookimpl(wrapper=True)
    def swift_setup(self) -> Generator[None, Any, Any]:
        return (yield from self._timed("setup"))

    @hookimpl(wrapper=True)
    def swift_wrap_model(self) -> Generator[None, Any, Any]:
        return (yield from self._timed("wrap_model"))

    @hookimpl(wrapper=True)
    def swift_shard(self) -> Generator[None, Any, Any]:
        return (yield from self._timed("shard"))

    @hookimpl(wrapper=True)
    def swift_train_step(self) -> Generator[None, Any, Any]:
        return (yield from self._timed("first_step"))

    @hookimpl(trylast=True)
    def swift_run_end(self, run: Run, summary: RunSummary) -> None:
        _append(run, self.FILE, {"times": self._times, "peak_mib": peak_memory_mib(), "tokens": summary.tokens})

    def _timed(self, phase: str) -> Generator[None, Any, Any]:
        self._times.setdefault(f"{phase}.begin", time.time())
        result = yield
        self._times.setdefault(f"{phase}.end", time.time())
        return result


def _append(run: Run, name: str, line: dict[str, Any]) -> None:
    with (run.folder / name).open("a") as file:
        file.write(json.dumps(line) + "\n")

"""Observers that measure a run from inside: plugins like anyone's, chosen with `--report_to`.

`benchmarks.commands` puts them on the path of the `swift` commands that it starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.commands import ROWS
from benchmarks.facts import MemoryWatch, cpu_seconds, peak_memory_mib
from swift.hookspecs import hookimpl

if TYPE_CHECKING:
    from benchmarks.bare_loop import BareLoop
    from swift.contracts import Run, RunSummary, StepResult
    from swift.data.batch import Batch


class LoopInTurn:
    """After every step of swift a loop written by hand makes one, in the same processes; both are timed.

    Swift's time is all that passes between two turns of the other: data, step, observers. Padded, the other trains on
    the very batch that swift did; otherwise on batches of its own over the same chats.
    """

    FILE = "turns.jsonl"

    def make(self, run: Run) -> BareLoop:
        """Return the loop that takes turns with swift."""
        from benchmarks.bare_loop import BareLoop

        config = run.config
        return BareLoop(config.model.path or "", config.data.train[0], config.learning_rate)

    @hookimpl(wrapper=True)
    def swift_shard(self, run: Run) -> Generator[None, Any, Any]:
        state = yield
        self._other = self.make(run)
        self._own = _shuffled(self._other) if run.config.data.packing else None
        self._since = time.perf_counter()
        return state

    @hookimpl(wrapper=True)
    def swift_train_step(self, run: Run, batch: Batch) -> Generator[None, StepResult, StepResult]:
        result = yield
        begin = time.perf_counter()
        samples = [sample.sample_id for row in batch.rows for sample in row]
        chosen = samples if self._own is None else next(self._own)
        loss, tokens = self._other.step(chosen)
        end = time.perf_counter()
        if run.world.rank == 0:
            turn = {
                "swift": {"tokens": batch.tokens, "seconds": begin - self._since, "loss": result.loss},
                "other": {"tokens": tokens, "seconds": end - begin, "loss": loss},
                "samples": samples,
            }
            _append(run, self.FILE, turn)
        self._since = time.perf_counter()
        return result


class ShardedLoopInTurn(LoopInTurn):
    """The same with FSDP2 applied by hand, on all processes of the run."""

    def make(self, run: Run) -> BareLoop:
        from benchmarks.sharded_loop import ShardedLoop

        config = run.config
        return ShardedLoop(config.model.path or "", config.data.train[0], config.learning_rate)


class DeepSpeedLoopInTurn(LoopInTurn):
    """The same with an engine of DeepSpeed, made by hand from the JSON of the run."""

    def make(self, run: Run) -> BareLoop:
        from benchmarks.deepspeed_loop import DeepSpeedLoop

        config = run.config
        DeepSpeedLoop.config = getattr(run.backend_options, "config", {})
        return DeepSpeedLoop(config.model.path or "", config.data.train[0], config.learning_rate)


class MegatronLoopInTurn(LoopInTurn):
    """The same with Megatron-Core by hand, in the process groups of the run."""

    def make(self, run: Run) -> BareLoop:
        from benchmarks.megatron_loop import MegatronLoop

        config = run.config
        rows = config.train.micro_batch
        return MegatronLoop(config.model.path or "", config.data.train[0], config.learning_rate, rows)


class MemoryOfEach:
    """What each process takes beyond what it had before the model: while weights are read, in training, between steps.

    Modules that building a model imports are imported before the first look.
    """

    @hookimpl(wrapper=True)
    def swift_wrap_model(self, run: Run) -> Generator[None, Any, Any]:
        import peft  # noqa: F401
        from transformers.models.qwen3 import modeling_qwen3  # noqa: F401

        self._watch = MemoryWatch()
        self._samples: list[list[int]] = []
        return (yield)

    @hookimpl(wrapper=True)
    def swift_shard(self) -> Generator[None, Any, Any]:
        state = yield
        self._watch.mark("loading")
        return state

    @hookimpl(wrapper=True)
    def swift_train_step(self, run: Run, batch: Batch) -> Generator[None, StepResult, StepResult]:
        result = yield
        self._samples.append([sample.sample_id for row in batch.rows for sample in row])
        if batch.step + 1 == run.total_steps:
            self._watch.mark("training")
            content = {"samples": self._samples, "mib": self._watch.end()}
            (run.folder / f"memory-{run.world.rank}.json").write_text(json.dumps(content))
        return result


def _shuffled(loop: BareLoop) -> Iterator[list[int]]:
    import torch

    source = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(loop.samples), generator=source).tolist()
        yield from (order[start : start + ROWS] for start in range(0, len(order) - ROWS + 1, ROWS))


class Stopwatch:
    """When each phase of a run begins and ends, by the wall clock and in CPU seconds, and its peak memory."""

    FILE = "stopwatch.json"

    def __init__(self) -> None:
        self._times: dict[str, float] = {"plugins": time.time()}
        self._cpu: dict[str, float] = {}

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
        _append(
            run,
            self.FILE,
            {"times": self._times, "cpu": self._cpu, "peak_mib": peak_memory_mib(), "tokens": summary.tokens},
        )

    def _timed(self, phase: str) -> Generator[None, Any, Any]:
        self._times.setdefault(f"{phase}.begin", time.time())
        result = yield
        self._times.setdefault(f"{phase}.end", time.time())
        self._cpu.setdefault(f"{phase}.end", cpu_seconds())
        return result


def _append(run: Run, name: str, line: dict[str, Any]) -> None:
    with (run.folder / name).open("a") as file:
        file.write(json.dumps(line) + "\n")

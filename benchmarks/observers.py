"""Observers that measure a run from inside, selected with `--report_to`.

`benchmarks.commands` adds them to the path of the `swift` commands that it starts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.commands import ROWS
from benchmarks.facts import MemoryWatch, cpu_seconds, peak_memory_mib
from benchmarks.peer import ORDER, Peer
from swift.hookspecs import hookimpl

if TYPE_CHECKING:
    from benchmarks.bare_loop import BareLoop
    from swift.contracts import Run, RunSummary, StepResult
    from swift.data.batch import Batch

Steps = Generator[None, "StepResult", "StepResult"]


class LoopInTurn:
    """After every step of swift a loop written by hand makes one, in the same processes; both are timed.

    Swift's time is all that passes between two steps of the other: data, step, observers. Padded, the other trains on
    the very batch that swift did; otherwise on batches of its own over the same chats.
    """

    @hookimpl(wrapper=True)
    def swift_shard(self, run: Run) -> Generator[None, Any, Any]:
        state = yield
        self._other = _loop_of(run)
        self._own = _shuffled(self._other) if run.config.data.packing else None
        self._since = time.perf_counter()
        return state

    @hookimpl(wrapper=True)
    def swift_train_step(self, run: Run, batch: Batch) -> Steps:
        result = yield
        begin = time.perf_counter()
        samples = _samples_of(batch)
        loss, tokens = self._other.step(samples if self._own is None else next(self._own))
        end = time.perf_counter()
        if run.world.rank == 0:
            turn = {
                "swift": {"tokens": batch.tokens, "seconds": begin - self._since, "loss": result.loss},
                "other": {"tokens": tokens, "seconds": end - begin, "loss": loss},
                "samples": samples,
            }
            append(run, "turns.jsonl", turn)
        self._since = time.perf_counter()
        return result


def _loop_of(run: Run) -> BareLoop:
    """Return the loop by hand for the engine of a run, in the process groups of the run."""
    config = run.config
    inputs = config.model.path or "", config.data.train[0], config.learning_rate
    match config.backend.name:
        case "fsdp":
            from benchmarks.sharded_loop import ShardedLoop

            return ShardedLoop(*inputs)
        case "deepspeed":
            from benchmarks.sharded_loop import DeepSpeedLoop

            DeepSpeedLoop.config = getattr(run.backend_options, "config", {})
            return DeepSpeedLoop(*inputs)
        case "megatron":
            from benchmarks.megatron_loop import MegatronLoop

            return MegatronLoop(*inputs, config.train.micro_batch)
    from benchmarks.bare_loop import BareLoop

    return BareLoop(*inputs)


class PeerInTurn:
    """After every step of swift another program makes one, in processes of its own; both are timed.

    CPU seconds of swift are those of all its threads, also for what they prepare during the step of the other.
    """

    @hookimpl(wrapper=True)
    def swift_shard(self) -> Generator[None, Any, Any]:
        state = yield
        order = json.loads(os.environ[ORDER])
        self._peer = Peer(order["module"], order, python=order["python"])
        self._peer.wait()
        self._since, self._cpu = time.perf_counter(), time.process_time()
        return state

    @hookimpl(wrapper=True)
    def swift_train_step(self, run: Run, batch: Batch) -> Steps:
        result = yield
        begin, cpu = time.perf_counter(), time.process_time()
        own = {
            "tokens": batch.tokens,
            "images": sum(map(len, batch.media_references())),
            "loss": result.loss,
            "seconds": begin - self._since,
            "cpu": cpu - self._cpu,
            "peak_mib": peak_memory_mib(),
        }
        other = self._peer.step()
        append(run, "turns.jsonl", {"swift": own, "other": {**other, "seconds": time.perf_counter() - begin}})
        self._since, self._cpu = time.perf_counter(), cpu
        return result


class MemoryOfEach:
    """What each process takes beyond what it had before the model: while weights are read, in training, between steps.

    Modules that building a model imports are imported before the first look.
    """

    @hookimpl(wrapper=True)
    def swift_wrap_model(self, run: Run) -> Generator[None, Any, Any]:
        import peft  # noqa: F401  # imported to be there before the first look at memory
        from transformers.models.qwen3 import modeling_qwen3  # noqa: F401  # the same

        self._watch = MemoryWatch()
        self._samples: list[list[int]] = []
        return (yield)

    @hookimpl(wrapper=True)
    def swift_shard(self) -> Generator[None, Any, Any]:
        state = yield
        self._watch.mark("loading")
        return state

    @hookimpl(wrapper=True)
    def swift_train_step(self, run: Run, batch: Batch) -> Steps:
        result = yield
        self._samples.append(_samples_of(batch))
        if batch.step + 1 == run.total_steps:
            self._watch.mark("training")
            content = {"samples": self._samples, "mib": self._watch.end()}
            (run.folder / f"memory-{run.world.rank}.json").write_text(json.dumps(content))
        return result


class Stopwatch:
    """When each phase of a run begins and ends, by the wall clock and in CPU seconds, and its peak memory."""

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
        line = {"times": self._times, "cpu": self._cpu, "peak_mib": peak_memory_mib(), "tokens": summary.tokens}
        append(run, "stopwatch.json", line)

    def _timed(self, phase: str) -> Generator[None, Any, Any]:
        self._times.setdefault(f"{phase}.begin", time.time())
        result = yield
        self._times.setdefault(f"{phase}.end", time.time())
        self._cpu.setdefault(f"{phase}.end", cpu_seconds())
        return result


def append(run: Run, name: str, line: Any) -> None:
    """Add a line of JSON to a file in the run's folder."""
    with (run.folder / name).open("a") as file:
        file.write(json.dumps(line) + "\n")


def _samples_of(batch: Batch) -> list[int]:
    return [sample.sample_id for row in batch.rows for sample in row]


def _shuffled(loop: BareLoop) -> Iterator[list[int]]:
    import torch

    source = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(loop.samples), generator=source).tolist()
        yield from (order[start : start + ROWS] for start in range(0, len(order) - ROWS + 1, ROWS))

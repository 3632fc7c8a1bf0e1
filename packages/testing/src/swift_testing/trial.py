"""One process of a trial, and what it records: the real loop of a run, observed from close by."""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import torch
import torch.distributed as dist

from swift.contracts import LossSums, ModelRole, ModelView, StepRecord, StepResult
from swift.data.batch import MicroBatch
from swift.parsing import config_from_mapping
from swift.train import Job, Loop, open_job
from swift_testing.cases import HELD_OUT, RESUMED, SAVED_AT, Case
from swift_testing.crew import FinalResult
from swift_testing.layouts import Layout
from swift_testing.slow_steps import SLOW_AT, slowed
from swift_testing.token_trial import TokenJob, TokenResults


@dataclass
class Streamed:
    """Stream of `swift_iter_weights` on one process."""

    weights: dict[str, np.ndarray]
    """On the main process."""
    sums: dict[str, float]
    """Of each tensor, over the absolute values."""
    dtypes: dict[str, str]
    twice: list[str]
    """Names that came more than once."""
    largest: int
    """Bytes of the largest tensor."""
    total: int
    held: int
    """Most bytes of tensors that were alive between two steps of the stream beyond those from before it."""


@dataclass
class Outcome:
    """Observations of one process in a trial."""

    results: dict[int, StepResult] = field(default_factory=dict)
    """By step, counted from 1."""
    evaluations: dict[int, float] = field(default_factory=dict)
    streamed: Streamed | None = None
    checkpoint: Path | None = None
    changed: dict[int, list[str]] = field(default_factory=dict)
    """By step, the names on disk of the weights that it has changed, in a case that asks for them."""
    token_results: TokenResults | None = None
    """Before the first step, in a case about values of tokens."""
    left_behind: list[str] = field(default_factory=list)
    """What teardown forgot."""


@dataclass(frozen=True)
class Trial:
    """A case under a layout, on a model, in a folder of its own."""

    backend: str
    case: Case
    layout: Layout
    model: Path
    output: Path
    cache: Path
    """Of tokenised data."""

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the configuration of the run, by dotted keys."""
        paths = {"model.path": str(self.model), "logging.output": str(self.output), "logging.run_name": "run"}
        paths["data.cache"] = str(self.cache)
        unmeasured = {"logging.time_breakdown": 0}
        return {"backend.name": self.backend, **self.case.settings(self.layout), **paths, **unmeasured, **more}

    def whole(self) -> Outcome:
        """From the first step to the last, with a checkpoint on the way in some cases; then the weights."""
        if not self.case.weighed:
            return self._whole()
        with _cleanliness() as left_behind:
            outcome = self._whole()  # a function of its own, so that nothing of the run is held here when it is over
        outcome.left_behind = left_behind
        return outcome

    def _whole(self) -> Outcome:
        saves = {"checkpoint.save_steps": SAVED_AT} if self.case.name in RESUMED else {}
        with self.opened(saves) as job:
            results = job.results() if isinstance(job, TokenJob) else None
            outcome = _watched(job, notes_changes=self.case.notes_changes)
            outcome.token_results = results
            outcome.streamed = _stream(job, weighed=self.case.weighed)
        return outcome

    def killed(self, at: int) -> FinalResult:
        """Up to a checkpoint at step `at`; then this process dies on the spot."""
        with self.opened() as job:
            outcome = _watched(job, pause_at=at)
            job.comms.barrier()
            return FinalResult(outcome)

    def resumed(self, checkpoint: Path, steps: int) -> Outcome:
        """On from a checkpoint, for so many steps."""
        with self.opened({"checkpoint.resume": str(checkpoint)}) as job:
            return _watched(job, steps=steps)

    def poisoned(self, step: int, sample: int) -> tuple[str, float]:
        """Run with one sample whose loss is not a number in one step; return the error, and how far weights moved."""
        with self.opened() as job, closing(Loop(job).steps()) as records:
            deque(islice(records, step - 1), maxlen=0)
            before = _weights(job)
            job.objective = cast(Any, _Poisoned(job.objective, sample))
            try:
                next(records)
            except Exception as error:
                after = job.hooks.swift_iter_weights(job.run, job.state)
                moved = max(float((tensor - before[name]).abs().max()) for name, tensor in after)
                return f"{type(error).__name__}: {error}", moved
            return "no error", 0.0

    def measured(self) -> list[StepRecord]:
        """Run with every step measured; one is slow in its data, one in its optimizer, one on process 1 alone."""
        settings = {"logging.time_breakdown": 1, "logging.steps": 1}
        with self.opened(settings) as job, slowed(job), closing(Loop(job).steps()) as records:
            return list(islice(records, max(SLOW_AT) + 1))

    def refused(self, roles: Sequence[ModelRole] = ()) -> list[str]:
        """Return what was read of the model before the plan was refused; the refusal itself is raised again."""
        read: list[str] = []
        with _noted_reading(read):
            try:
                with self.opened(roles=roles):
                    return ["everything: the plan was not refused"]
            except BaseException as error:
                error.__dict__["read_before"] = read
                raise

    @contextmanager
    def opened(self, changes: Mapping[str, Any] | None = None, roles: Sequence[ModelRole] = ()) -> Iterator[Job]:
        """Open the run, with its output discarded."""
        parsed, rows = config_from_mapping(self.settings(**(changes or {}))), self.case.rows
        with _silence(), open_job(parsed, rows=rows, validation_rows=rows[:HELD_OUT], roles=roles) as job:
            yield TokenJob.of(job) if self.case.tokens else job


@contextmanager
def _silence() -> Iterator[None]:
    """Discard output for users, which is not under test."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def _watched(
    job: Job, *, pause_at: int | None = None, steps: int | None = None, notes_changes: bool = False
) -> Outcome:
    """Train to the end, or for so many steps, and keep what observers see on one process only."""
    outcome, loop = Outcome(), Loop(job, pause_at=pause_at)
    weights = _weights(job) if notes_changes else {}
    with closing(loop.steps()) as records:
        for record in islice(records, steps):
            outcome.results[record.step] = record.result
            if record.evaluation is not None:
                outcome.evaluations[record.step] = record.evaluation["loss"]
            if notes_changes:
                before, weights = weights, _weights(job)
                outcome.changed[record.step] = sorted(
                    name for name, value in weights.items() if not value.equal(before[name])
                )
    outcome.checkpoint = loop.saver.last
    return outcome


def _weights(job: Job) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in job.hooks.swift_iter_weights(job.run, job.state)}


class _Poisoned:
    """An objective that finds no number for one sample."""

    def __init__(self, objective: Any, sample: int) -> None:
        self._objective = objective
        self._sample = sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        sums: LossSums = self._objective.loss(view, batch)
        if self._sample in batch.sample_ids:
            sums.loss = sums.loss * float("nan")
        return sums


def _stream(job: Job, *, weighed: bool) -> Streamed:
    """Read the stream to its end, keeping what is needed on the main process only."""
    streamed = Streamed({}, {}, {}, [], 0, 0, 0)
    with _new_tensors() if weighed else nullcontext() as scale:
        kept: set[int] = set()
        for name, tensor in job.hooks.swift_iter_weights(job.run, job.state):
            size = tensor.numel() * tensor.element_size()
            if name in streamed.dtypes:
                streamed.twice.append(name)
            streamed.dtypes[name] = str(tensor.dtype).removeprefix("torch.")
            streamed.sums[name] = float(tensor.detach().abs().sum(dtype=torch.float64))
            streamed.largest = max(streamed.largest, size)
            streamed.total += size
            if job.is_main:
                copy = tensor.detach().cpu().float().clone()
                streamed.weights[name] = copy.numpy()  # tensors do not outlive the process that sends them
                kept.add(copy.untyped_storage().data_ptr())
            if scale is not None:
                streamed.held = max(
                    streamed.held, sum(size for address, size in scale().items() if address not in kept)
                )
    return streamed


@contextmanager
def _new_tensors() -> Iterator[Callable[[], dict[int, int]]]:
    """Inside, a function that tells the memory of all tensors made since: address → bytes, shared memory once.

    New objects are the youngest generation's, as long as nothing is collected. To freeze the others instead, and thaw
    them in the end, would have the next collection look at, and so copy, everything that the crew's parent had made.
    """
    gc.collect()
    known = set(_memory_of_tensors(gc.get_objects()))
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield lambda: {
            address: size
            for address, size in _memory_of_tensors(gc.get_objects(generation=0)).items()
            if address not in known
        }
    finally:
        if was_enabled:
            gc.enable()


def _memory_of_tensors(objects: Sequence[object]) -> dict[int, int]:
    storages = {}
    for thing in objects:
        if issubclass(type(thing), torch.Tensor):
            tensor: Any = getattr(thing, "_local_tensor", thing)
            try:
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
            except (RuntimeError, NotImplementedError):
                continue  # without memory: on the meta device, or a wrapper
    storages.pop(0, None)
    return storages


@contextmanager
def _cleanliness() -> Iterator[list[str]]:
    """Compare this process before and after; the list holds the leftovers when the block has ended."""
    found: list[str] = []
    process = psutil.Process()
    environment = dict(os.environ)
    threads = set(threading.enumerate())
    listening = set(_listening(process))
    yield found
    gc.collect()
    if dist.is_initialized():
        found.append("a process group")
    changed = {name for name in {*environment, *os.environ} if environment.get(name) != os.environ.get(name)}
    found += [f"the environment variable {name}" for name in sorted(changed)]
    found += [f"the process {child.pid}" for child in process.children(recursive=True)]
    started = [each for each in threading.enumerate() if each not in threads and not each.daemon]
    found += [f"the thread {each.name}" for each in started]
    found += [f"a listener on port {port}" for port in sorted(set(_listening(process)) - listening)]


def _listening(process: psutil.Process) -> list[int]:
    return [each.laddr.port for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]


@contextmanager
def _noted_reading(read: list[str]) -> Iterator[None]:
    """Record the weights that are read, or the model that is built."""
    from swift.models import HfSource

    real_read, real_build = HfSource.read, HfSource.build

    def noted_read(source: Any, name: str) -> torch.Tensor:
        read.append(name)
        return real_read(source, name)

    def noted_build(source: Any, **arguments: Any) -> torch.nn.Module:
        if arguments.get("weights", True):
            read.append("the whole model")
        return real_build(source, **arguments)

    HfSource.read, HfSource.build = noted_read, noted_build  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        HfSource.read, HfSource.build = real_read, real_build  # type: ignore[method-assign]

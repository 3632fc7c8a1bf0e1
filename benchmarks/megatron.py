"""Compare the Megatron backend's speed with a hand-written Megatron-Core loop, and measure pipeline bubbles.

Speed: swift and the loop alternate step by step in the same two processes, on the same batches. Pipeline: one command
per layout, on samples of equal length with responses of one word, since work in the head would make the last stage
longer, which the formula does not include. `plan_traffic` counts the bytes of each layout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from functools import partial, wraps
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from benchmarks.alternation import figures_in_turn, summary, turns
from benchmarks.commands import ROWS, UNSAVED, swift_run
from benchmarks.facts import Figure, read_lines
from benchmarks.inputs import DEEP, EVEN, ensure
from benchmarks.observers import append
from benchmarks.schedules import Durations, Work, replay
from swift.hookspecs import hookimpl

MEGATRON = ("--backend", "megatron", "--nproc", "2")
STAGES = 2
MICRO_BATCHES = (2, 4, 8)
MICRO_ROWS = 4

Pass = list[list[dict[str, Any]]]
"""Forward and backward of each micro-batch through each chunk: by process, in the order in which it was done."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure()
    of_speed, speed = _speed(quick)
    of_pipeline, pipeline = _pipelines(quick)
    return [*of_speed, *of_pipeline], {"in_turn": speed, "pipeline": pipeline, "notes": NOTES}


# Speed


def _speed(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for name, arguments in {
        "tp 2": ("--tp", "2", "--per_device_train_batch_size", str(ROWS)),
        "pp 2": ("--pp", "2", "--per_device_train_batch_size", str(MICRO_ROWS), "--gradient_accumulation_steps", "4"),
    }.items():
        run = f"megatron-in-turn-{name.replace(' ', '')}"
        taken = turns(run, 15 if quick else 65, *MEGATRON, *arguments)
        figures += figures_in_turn(name, "Megatron-Core by hand", taken, at_least=0.97)
        details[name] = {"arguments": arguments, "steps": len(taken), **summary(taken)}
    return figures, details


# Pipeline


def _pipelines(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    steps = 4 if quick else 10
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for chunks in (1, 2):
        for count, passes in _passes(chunks, steps).items():
            name = f"pp {STAGES}" + (f" x vpp {chunks}" if chunks > 1 else "") + f", {count} micro-batches"
            formula = (STAGES - 1) / (chunks * count + STAGES - 1)
            by_step = [_bubble(each) for each in passes]
            bubbles = {"formula": formula, "order of work": _replayed(passes), "clock": median(by_step)}
            figures += [
                Figure(f"{name}: bubble by formula", bubbles["formula"], ""),
                Figure(f"{name}: bubble of the order of work", bubbles["order of work"], ""),
                Figure(f"{name}: bubble by the clock", bubbles["clock"], ""),
            ]
            details[name] = {"bubble": bubbles, "bubble_by_step": by_step}
    return figures, details


def _passes(chunks: int, steps: int) -> dict[int, list[Pass]]:
    layout = ("--pp", str(STAGES), "--parallel.vpp", str(chunks), "--per_device_train_batch_size", str(MICRO_ROWS))
    layout = (*layout, "--gradient_accumulation_steps", str(max(MICRO_BATCHES)))
    index = (*MEGATRON, *layout, "--max_steps", str((steps + 1) * len(MICRO_BATCHES)), *UNSAVED)
    name = f"megatron-pipeline-{chunks}"
    folder = swift_run(name, *index, observers=["pipeline-watch"], model=DEEP, data=EVEN)
    passes = zip(*(read_lines(folder / f"pipeline-{rank}.jsonl") for rank in range(STAGES)), strict=True)
    by_count: dict[int, list[Pass]] = {count: [] for count in MICRO_BATCHES}
    for work in passes:
        by_count[1 + max(each["number"] for each in work[0])].append(list(work))
    return {count: found[1:] for count, found in by_count.items()}  # the first warms up


def _bubble(work: Pass) -> float:
    """Return the share of the time between the first and the last work of all processes that they did not work."""
    every = [each for own in work for each in own]
    took = max(each["end"] for each in every) - min(each["begin"] for each in every)
    return 1 - sum(each["end"] - each["begin"] for each in every) / (len(work) * took)


def _replayed(passes: Sequence[Pass]) -> float:
    """Return the bubble of the last pass's order, each part as soon as its inputs are ready, as `swift plan` has it.

    Parts take the median of the processor's seconds of their kind on their process.
    """
    orders = [[Work(each["what"], each["chunk"], each["number"]) for each in own] for own in passes[-1]]
    chunks = 1 + max(work.chunk for own in orders for work in own)
    kinds = ("forward", "backward")
    seconds = [
        [chunks * median(each["processor"] for own in passes for each in own[rank] if each["what"] == kind)
         for kind in kinds]
        for rank in range(STAGES)
    ]  # fmt: skip
    forward, backward = (fmean(own[kind] for own in seconds) for kind in range(len(kinds)))
    slower = [sum(own) / (forward + backward) for own in seconds]
    return replay(orders, Durations(forward, backward), slower).bubble


NOTES = (
    "Bubbles: 'of the order of work' replays the forward and backward passes of each process in the order in which "
    "Megatron ran them, each with the median of the processor's seconds of its kind and process, and with messages "
    "that take no time. It differs from the formula where stages are not equally long: the first has the embedding, "
    "the last the head. 'By the clock' also has the messages, and what else the machine does meanwhile.",
)


if TYPE_CHECKING:
    from swift.contracts import Run, StepResult
    from swift.data.batch import Batch


class PipelineWatch:
    """Forward and backward of each micro-batch through each chunk: when, and how many seconds of the processor.

    Steps take turns with numbers of micro-batches: what a batch has beyond is left out.
    """

    @hookimpl(wrapper=True)
    def swift_shard(self, run: Run) -> Generator[None, Any, Any]:
        state = yield
        from megatron.core.pipeline_parallel import schedules

        self._work: list[dict[str, Any]] = []
        self._of: dict[int, tuple[int, int]] = {}
        vars(schedules)["forward_step"] = self._forward(schedules.forward_step)
        vars(schedules)["backward_step"] = self._backward(schedules.backward_step)
        return state

    @hookimpl(wrapper=True)
    def swift_train_step(self, run: Run, batch: Batch) -> Generator[None, StepResult, StepResult]:
        count = MICRO_BATCHES[batch.step % len(MICRO_BATCHES)]
        batch.rows = batch.rows[: count * batch.micro_rows]
        batch.global_rows = len(batch.rows)
        self._work.clear()
        self._of.clear()
        result = yield
        append(run, f"pipeline-{run.world.rank}.jsonl", self._work)
        return result

    def _forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def forward_step(*args: Any, **kwargs: Any) -> Any:
            index = kwargs.get("vp_stage") or 0, kwargs["current_microbatch"]
            result = self._timed("forward", index, partial(original, *args, **kwargs))
            self._of[id(_alone(result[0]))] = index
            return result

        return forward_step

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def backward_step(input_tensor: Any, output_tensor: Any, *args: Any) -> Any:
            index = self._of.pop(id(_alone(output_tensor)))
            return self._timed("backward", index, partial(original, input_tensor, output_tensor, *args))

        return backward_step

    def _timed(self, what: str, index: tuple[int, int], work: Callable[[], Any]) -> Any:
        begin, processor = time.monotonic(), time.thread_time()
        result = work()
        used = time.thread_time() - processor
        end = time.monotonic()
        chunk, number = index
        self._work.append(
            {"what": what, "chunk": chunk, "number": number, "begin": begin, "end": end, "processor": used}
        )
        return result


def _alone(output: Any) -> Any:
    return output[0] if isinstance(output, list) else output

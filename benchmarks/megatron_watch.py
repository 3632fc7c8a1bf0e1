"""Observers that look into Megatron's pipeline schedules, and at what goes over torch's process groups."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from unittest import mock

from swift.hookspecs import hookimpl

if TYPE_CHECKING:
    from swift.contracts import Run, StepResult
    from swift.data.batch import Batch

WHOLE = {
    "allreduce": 0,
    "allreduce_coalesced": 0,
    "allgather": 0,
    "allgather_coalesced": 0,
    "_allgather_base": 0,
    "allgather_into_tensor_coalesced": 0,
    "all_gather_single": 0,
    "all_gather_single_coalesced": 0,
    "reduce_scatter": 1,
    "_reduce_scatter_base": 1,
    "reduce_scatter_tensor_coalesced": 1,
    "reduce_scatter_single": 1,
    "reduce_scatter_single_coalesced": 1,
    "alltoall": 1,
    "alltoall_base": 1,
    "all_to_all_single": 1,
    "broadcast": 0,
    "reduce": 0,
    "send": 0,
}
"""Methods of a process group, and which argument has the bytes that count: what is gathered, what is to be scattered,
what is sent. All functions of `torch.distributed` end in one of these, so that nothing counts twice."""


class PipelineWatch:
    """Forward and backward of each micro-batch through each chunk: when, and how many seconds of the processor.

    Steps take turns with numbers of micro-batches: what a batch has beyond is left out.
    """

    FILE = "pipeline-{}.jsonl"
    MICRO_BATCHES = (2, 4, 8)

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
        count = self.MICRO_BATCHES[batch.step % len(self.MICRO_BATCHES)]
        batch.rows = batch.rows[: count * batch.micro_rows]
        batch.global_rows = len(batch.rows)
        self._work.clear()
        self._of.clear()
        result = yield
        with (run.folder / self.FILE.format(run.world.rank)).open("a") as file:
            file.write(json.dumps(self._work) + "\n")
        return result

    def _forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def forward_step(*args: Any, **kwargs: Any) -> Any:
            place = kwargs.get("vp_stage") or 0, kwargs["current_microbatch"]
            result = self._timed("forward", place, partial(original, *args, **kwargs))
            self._of[id(_alone(result[0]))] = place
            return result

        return forward_step

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def backward_step(input_tensor: Any, output_tensor: Any, *args: Any) -> Any:
            place = self._of.pop(id(_alone(output_tensor)))
            return self._timed("backward", place, partial(original, input_tensor, output_tensor, *args))

        return backward_step

    def _timed(self, what: str, place: tuple[int, int], work: Callable[[], Any]) -> Any:
        begin, processor = time.monotonic(), time.thread_time()
        result = work()
        used = time.thread_time() - processor
        end = time.monotonic()
        chunk, number = place
        self._work.append(
            {"what": what, "chunk": chunk, "number": number, "begin": begin, "end": end, "processor": used}
        )
        return result


def _alone(output: Any) -> Any:
    return output[0] if isinstance(output, list) else output


class TrafficWatch:
    """How many bytes a process hands to its groups in each step, by operation and size."""

    FILE = "traffic-{}.jsonl"

    @hookimpl(wrapper=True)
    def swift_train_step(self, run: Run, state: Any, batch: Batch) -> Generator[None, StepResult, StepResult]:
        from torch.distributed import ProcessGroup

        counted: Counter[tuple[str, int]] = Counter()
        with ExitStack() as stack:
            for name in WHOLE.keys() & set(dir(ProcessGroup)):
                watched = self._watched(name, getattr(ProcessGroup, name), counted)
                stack.enter_context(mock.patch.object(ProcessGroup, name, watched))
            result = yield
        micro_batches = list(batch.micro_batches())
        parameters = [each for chunk in state.wrapped for each in chunk.parameters()]
        line = {
            "tokens": sum(each.input_ids.numel() for each in micro_batches),
            "learned": sum(int((each.weights != 0).sum()) for each in micro_batches),
            "dense": sum(each.numel() for each in parameters if getattr(each, "allreduce", True)),
            "experts": sum(each.numel() for each in parameters if not getattr(each, "allreduce", True)),
            "traffic": [[name, size, count] for (name, size), count in sorted(counted.items())],
        }
        with (run.folder / self.FILE.format(run.world.rank)).open("a") as file:
            file.write(json.dumps(line) + "\n")
        return result

    @staticmethod
    def _watched(name: str, original: Callable[..., Any], counted: Counter[tuple[str, int]]) -> Callable[..., Any]:
        def method(group: Any, *args: Any, **kwargs: Any) -> Any:
            if group.size() > 1:
                counted[name, sum(each.nbytes for each in _tensors(args[WHOLE[name]]))] += 1
            return original(group, *args, **kwargs)

        return method


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, Iterable) and not hasattr(value, "nbytes"):
        for each in value:
            yield from _tensors(each)
    else:
        yield value

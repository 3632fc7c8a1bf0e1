"""An observer that counts the messages of a process, from Python, autograd or C++."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from swift.hookspecs import hookimpl

if TYPE_CHECKING:
    from swift.contracts import Run, StepResult

KINDS: Mapping[str, tuple[str, int | str]] = {
    "c10d::allgather_": ("all_gather", 0),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::allgather_coalesced_": ("all_gather", 0),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", 0),
    "c10d::reduce_scatter_": ("reduce_scatter", 1),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all_reduce", 0),
    "c10d::alltoall_": ("all_to_all", 1),
    "c10d::alltoall_base_": ("all_to_all", 1),
    "c10d::send": ("send", 0),
    "c10d::broadcast_": ("broadcast", 0),
    "c10d::reduce_": ("reduce", 0),
    "_c10d_functional::all_reduce": ("all_reduce", 0),
    "_c10d_functional::all_reduce_": ("all_reduce", 0),
    "_c10d_functional::all_reduce_coalesced": ("all_reduce", 0),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", "result"),
    "_c10d_functional::all_gather_into_tensor_out": ("all_gather", "result"),
    "_c10d_functional::all_gather_into_tensor_coalesced": ("all_gather", "result"),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", 0),
    "_c10d_functional::reduce_scatter_tensor_out": ("reduce_scatter", 0),
    "_c10d_functional::reduce_scatter_tensor_coalesced": ("reduce_scatter", 0),
    "_c10d_functional::all_to_all_single": ("all_to_all", 0),
    "_c10d_functional::broadcast": ("broadcast", 0),
}
"""What torch's dispatcher is asked for, and which argument, or the result, has the bytes that count: what is gathered,
what is to be reduced and scattered, what is given away."""


class Messages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts messages by operation, size of the group, and bytes, while it is on."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted: Counter[tuple[str, int, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        kind = KINDS.get(func._schema.name)
        if kind is not None and (ways := _size_of_group(args)) > 1:
            operation, position = kind
            held = result if position == "result" else args[int(position)]
            self.counted[operation, ways, sum(each.nbytes for each in _tensors(held))] += 1
        return result


class TrafficOfEach:
    """How many bytes a process hands to its groups in each step, by operation, group and size, on any backend."""

    FILE = "traffic-{}.jsonl"

    @hookimpl(wrapper=True)
    def swift_train_step(self, run: Run) -> Generator[None, StepResult, StepResult]:
        with Messages() as messages:
            result = yield
        line = [[*message, count] for message, count in sorted(messages.counted.items())]
        with (run.folder / self.FILE.format(run.world.rank)).open("a") as file:
            file.write(json.dumps(line) + "\n")
        return result


def _size_of_group(args: Iterable[Any]) -> int:
    """Return how many processes a message is for, by the group among its arguments."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import _resolve_process_group
    from torch.distributed.distributed_c10d import GroupName

    for each in args:
        if isinstance(each, str) and each.isdigit():
            return int(_resolve_process_group(GroupName(each)).size())
        if "ProcessGroup" in str(getattr(each, "_type", lambda: "")()):
            return int(dist.ProcessGroup.unbox(each).size())
    raise ValueError("a message to no group")


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, Iterable) and not hasattr(value, "nbytes"):
        for each in value:
            yield from _tensors(each)
    else:
        yield value

"""Main memory that asynchronous saves copy into.

New memory costs several times what copying into it does, so that it is kept from one save to the next: what a process
holds at every save, it holds between saves too.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

_ALIGNMENT = 64
_THREADS = 4
_WORTH_THREADS = 64 * 2**20
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes of an element: what numpy knows too, whatever the elements mean."""

_lock = threading.Lock()
_spare: list[torch.Tensor] = []
"""Of the last save that is over, for the next one."""


class Staging:
    """Copies of tensors, in one piece of memory that goes to the next save once these are `released`."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], written: torch.cuda.Event | None = None) -> None:
        """`written` is when a GPU will have written them; work that it is given later may run during the copy."""
        starts, size = {}, 0
        for name, tensor in tensors.items():
            starts[name] = size
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        gpu = next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None)
        with contextlib.nullcontext() if gpu is None else torch.cuda.device(gpu):  # a thread begins with the first one
            self._memory = _memory(size, locked=gpu is not None)
        self.copies: dict[str, torch.Tensor] = {}
        for name, tensor in tensors.items():
            own = self._memory[starts[name] : starts[name] + tensor.nbytes]
            self.copies[name] = own.view(tensor.dtype).view(tensor.shape)
        pairs = [(self.copies[name], tensor) for name, tensor in tensors.items()]
        if gpu is None:
            copy_tensors(pairs)
            return
        copy_stream: torch.cuda.Stream = torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        with torch.cuda.stream(copy_stream):
            if written is not None:
                copy_stream.wait_event(written)
            copy_tensors(pairs)
        copy_stream.synchronize()

    def release(self) -> None:
        """Mark the copies as no longer needed."""
        self.copies = {}
        with _lock:
            _spare[:] = [self._memory]


def work_until_now() -> torch.cuda.Event | None:
    """Return the end of what this process has given its GPU to do: what comes later is not saved."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    event.record()
    return event


def copy_tensors(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Fill the first of each pair from the second.

    Torch would cut every tensor over all threads and wait for all of them before the next one, which takes many times
    as long where the processor has something else to do as well. Here each thread takes one tensor after the other.
    """
    plain = [pair for pair in pairs if pair[1].device.type == "cpu"]
    for own, tensor in pairs:
        if tensor.device.type != "cpu":
            own.copy_(tensor, non_blocking=True)
    threads = min(torch.get_num_threads(), _THREADS)
    if threads == 1 or sum(tensor.nbytes for _, tensor in plain) < _WORTH_THREADS:
        for pair in plain:
            _copy_here(pair)
        return
    largest_first = sorted(plain, key=lambda pair: -pair[1].nbytes)
    with ThreadPoolExecutor(threads, "staging") as pool:
        deque(pool.map(_copy_here, largest_first), maxlen=0)


def _copy_here(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    own, tensor = (each.view(_INTEGERS[each.element_size()]).numpy() for each in pair)
    np.copyto(own, tensor)


def _memory(size: int, *, locked: bool) -> torch.Tensor:
    with _lock:
        held = _spare.pop() if _spare else None
    if held is not None and held.numel() >= size:
        return held
    del held  # before there is a second one
    # Private: without it a process that is forked from this one would write into the same memory.
    pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    if locked:
        _lock_pages(memory)
    return memory


def _lock_pages(memory: torch.Tensor) -> None:
    """Let the GPU write into it by itself; where that is refused, copies go through the driver's own memory."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    pointer = memory.data_ptr()
    if int(runtime.cudaHostRegister(pointer, memory.nbytes, 0)) == 0:
        weakref.finalize(memory, runtime.cudaHostUnregister, pointer)

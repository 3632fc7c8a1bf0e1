"""The optimizer's state on a disk: where DeepSpeed swaps it, by what, and in which folder.

DeepSpeed's own reading and writing is an operator in C++ on top of libaio. Where the machine has libaio it is built
once, at the first run; elsewhere threads of this module read and write the same files.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from swift.contracts import POLICY, Run
from swift_backend_deepspeed.operators import build_operator

_SWAPPER = "deepspeed.runtime.swap_tensor.partitioned_optimizer_swapper"


def prepare(run: Run, config: dict[str, Any]) -> Path:
    """Give this run a folder of its own, and DeepSpeed something to read and write with; return this process's."""
    section = config["zero_optimization"]["offload_optimizer"]
    # The same on every process, and another one for every run and role; what a killed session of it left is replaced.
    owner = "" if run.role == POLICY else f"#{run.role}"
    name = hashlib.sha256(f"{run.folder.resolve()}{owner}".encode()).hexdigest()[:12]
    folder = Path(section["nvme_path"]) / f"swift-{name}"
    section["nvme_path"] = str(folder)
    own = folder / "zero_stage_3" / "optimizer" / f"rank{run.world.rank}"
    shutil.rmtree(own, ignore_errors=True)
    import importlib

    from deepspeed.ops.op_builder import AsyncIOBuilder

    swapper = importlib.import_module(_SWAPPER)
    if AsyncIOBuilder().is_compatible():
        build_operator(run, "async_io", AsyncIOBuilder)
        swapper.AsyncIOBuilder = AsyncIOBuilder  # type: ignore[attr-defined]
    else:
        run.say("DeepSpeed's reading and writing needs libaio, which is not here: threads swap the optimizer's state.")
        swapper.AsyncIOBuilder = ThreadedIOBuilder  # type: ignore[attr-defined]
    run.say(f"The optimizer's state is swapped to {folder}.")
    return own


def clear(own: Path) -> None:
    """Remove the files of this process, and the folders when they are empty."""
    shutil.rmtree(own, ignore_errors=True)
    for folder in list(own.parents)[:3]:
        try:
            folder.rmdir()
        except OSError:
            break  # other processes are not done


class ThreadedIOBuilder:
    """Instead of DeepSpeed's `AsyncIOBuilder`."""

    def load(self, verbose: bool = False) -> Any:
        """Return the operator's module: the class of handles alone."""
        return type("ThreadedIO", (), {"aio_handle": ThreadedIO})


class ThreadedIO:
    """Instead of DeepSpeed's `aio_handle`: whole tensors to and from files, several at a time."""

    def __init__(
        self,
        block_size: int = 1 << 20,
        queue_depth: int = 8,
        single_submit: bool = False,
        overlap_events: bool = True,
        intra_op_parallelism: int = 1,
    ) -> None:
        self._block = block_size
        self._threads = ThreadPoolExecutor(max_workers=queue_depth, thread_name_prefix="swap")
        self._pending: list[Future[None]] = []
        self._buffers: dict[int, mmap.mmap] = {}
        """Address of a buffer → its memory."""
        self.written = 0
        """Bytes, so far."""

    def new_cpu_locked_tensor(self, count: int, example: torch.Tensor) -> torch.Tensor:
        """Return a buffer that begins at a page."""
        memory = mmap.mmap(-1, max(1, count * example.element_size()))
        buffer = torch.frombuffer(memory, dtype=example.dtype, count=count)
        self._buffers[buffer.untyped_storage().data_ptr()] = memory
        return buffer

    def free_cpu_locked_tensor(self, buffer: torch.Tensor) -> bool:
        """Let go of a buffer."""
        return self._buffers.pop(buffer.untyped_storage().data_ptr(), None) is not None

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in one of the buffers."""
        return tensor.untyped_storage().data_ptr() in self._buffers

    def async_pread(self, tensor: torch.Tensor, path: str, offset: int = 0) -> int:
        """Begin to fill a tensor from a file."""
        self._pending.append(self._threads.submit(_move, os.preadv, os.O_RDONLY, tensor, path, offset, self._block))
        return 0

    def async_pwrite(self, tensor: torch.Tensor, path: str, offset: int = 0) -> int:
        """Begin to write a tensor to a file."""
        flags = os.O_WRONLY | os.O_CREAT
        self._pending.append(self._threads.submit(_move, os.pwritev, flags, tensor, path, offset, self._block))
        self.written += tensor.nbytes
        return 0

    def wait(self) -> int:
        """Until all that was begun has ended; how much that was. What went wrong is raised."""
        pending, self._pending = self._pending, []
        for each in pending:
            each.result()
        return len(pending)

    def __del__(self) -> None:
        self._threads.shutdown(wait=False)


def _move(
    call: Callable[[int, list[memoryview], int], int],
    flags: int,
    tensor: torch.Tensor,
    path: str,
    offset: int,
    block: int,
) -> None:
    bytes_of: Any = tensor.detach().view(torch.uint8).numpy()
    memory = memoryview(bytes_of)
    file = os.open(path, flags, 0o600)
    try:
        done = 0
        while done < len(memory):
            moved = call(file, [memory[done : done + block]], offset + done)
            if moved == 0:
                raise OSError(f"{path} ends after {offset + done} bytes")
            done += moved
    finally:
        os.close(file)

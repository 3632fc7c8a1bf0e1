"""An observer that, after a run's last step, saves its state in turn in swift's format and in the engine's own.

All of it in the processes of the run, on the same state; after the saves the state is read back.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from benchmarks.checkpoints import ROUNDS_VARIABLE
from benchmarks.facts import MemoryWatch
from swift.hookspecs import hookimpl

if TYPE_CHECKING:
    from swift.contracts import Objective, Run, StepResult
    from swift.data.batch import Batch

ENGINES = {
    "torch": "swift.backends.torch.checkpoint",
    "fsdp": "swift_backend_fsdp.checkpoint",
    "deepspeed": "swift_backend_deepspeed.checkpoint",
    "megatron": "swift_backend_megatron.checkpoint",
}
"""Where each backend hands its tensors over, and reads them."""
M_MMAP_THRESHOLD = -3
"""glibc's name for the size from which memory is taken from the kernel and given back at once."""


class CheckpointWatch:
    """Notes what saving and loading take, as `checkpoints-<rank>.json` in the run's folder."""

    @hookimpl(wrapper=True)
    def swift_train_step(
        self, run: Run, state: Any, batch: Batch, objective: Objective
    ) -> Generator[None, StepResult, StepResult]:
        result = yield
        if batch.step + 1 == run.total_steps:
            found = Turns(run, state, batch, objective).measure(int(os.environ[ROUNDS_VARIABLE]))
            (run.folder / f"checkpoints-{run.world.rank}.json").write_text(json.dumps(found))
        return result


class Turns:
    """Swift's save, swift's save in the background, and the engine's own, one after the other."""

    def __init__(self, run: Run, state: Any, batch: Batch, objective: Objective) -> None:
        from swift.models.source import open_source

        self.run, self.state, self.batch, self.objective = run, state, batch, objective
        self.name = run.config.backend.name
        self.backend = import_module(ENGINES[self.name])
        self.source = open_source(run.config.model, say=lambda _: None)
        self.folder = run.folder / "saves"

    def measure(self, rounds: int) -> dict[str, Any]:
        """Everything; the first round warms up and is kept apart, as memory to copy into is new in it."""
        turns = [self._round() for _ in range(rounds + 1)]
        return {
            "first": turns[0],
            "rounds": turns[1:],
            "with_model_weights": self._round(model_weights=True),
            "memory": self._memory(),
            "load": self._load(),
        }

    def _round(self, *, model_weights: bool = False) -> dict[str, float]:
        found: dict[str, float] = {}
        if not model_weights:
            native = self._timed(self._native, then=self._sync)
            found |= {"native": native["first"], "native, synced": native["both"]}
        swift = self._timed(partial(self._swift, model_weights=model_weights))
        pending: list[Any] = []
        background = self._timed(
            lambda folder: pending.append(self._swift(folder, model_weights=model_weights, asynchronous=True)),
            then=lambda _: self._step_beside(pending[0]),
        )
        return {
            **found,
            "swift": swift["first"],
            "call": background["first"],
            "wait": pending[0].waited,
            "stall": background["first"] + pending[0].waited,
            "in the background": background["both"],
        }

    def _step_beside(self, pending: Any) -> None:
        """Run the next step, during which the copy is made, and wait for the end of the save."""
        import_module(ENGINES[self.name].replace("checkpoint", "step")).train_step(
            self.run, self.state, self.batch, self.objective
        )
        pending.wait()

    def _timed(self, save: Callable[[Path], Any], then: Callable[[Path], Any] = lambda _: None) -> dict[str, float]:
        """Seconds until `save` is over on all processes, and until `then` is."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.sync()
        _meet()
        begin = time.perf_counter()
        save(self.folder)
        _meet()
        middle = time.perf_counter()
        then(self.folder)
        _meet()
        return {"first": middle - begin, "both": time.perf_counter() - begin}

    def _swift(self, folder: Path, *, model_weights: bool = False, asynchronous: bool = False) -> Any:
        from swift.checkpoint import Manifest, save_checkpoint
        from swift.export.run import write_model_weights

        return save_checkpoint(
            folder,
            1,
            fill=lambda writer: self.backend.save(self.state, writer),
            manifest=Manifest(
                step=1, rows_per_step=1, seed=1, model_fingerprint="", data_fingerprint="", backend=self.name
            ),
            is_main=self.run.world.rank == 0,
            extra=partial(write_model_weights, source=self.source, adapter=None) if model_weights else None,
            asynchronous=asynchronous,
            copy_later=True,
        )

    def _native(self, folder: Path) -> None:
        if self.run.world.rank == 0:
            folder.mkdir(parents=True)
        _meet()
        {"torch": _torch, "fsdp": _fsdp, "deepspeed": _deepspeed, "megatron": _megatron}[self.name](self.state, folder)

    def _sync(self, folder: Path) -> None:
        """Sync every file to disk, as swift does."""
        if self.run.world.rank == 0:
            for path in folder.rglob("*"):
                handle = os.open(path, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)

    def _memory(self) -> dict[str, float]:
        """Return the peak of a save above what there was before it, in MiB, beside the largest tensor."""
        from swift.checkpoint.storage import INDEX

        # From here on what is free is given back, so that what is seen is what is used; the timed saves are over.
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, 65_536)
        self._timed(self._swift)
        gc.collect()
        library.malloc_trim(0)
        watch = MemoryWatch()
        for name, model_weights in (("swift", False), ("with model weights", True)):
            self._timed(partial(self._swift, model_weights=model_weights))
            watch.mark(name)
        index = json.loads((self.folder / "checkpoint-1" / INDEX).read_text())["tensors"]
        largest = max(math.prod(tensor["shape"]) for tensor in index.values()) * 4
        return {**watch.end(), "largest tensor": largest / 2**20}

    def _load(self) -> dict[str, float]:
        """Of the checkpoint that was saved last: bytes requested from the kernel, and bytes that are held."""
        from swift.checkpoint import open_checkpoint

        _meet()
        read = _bytes_read()
        checkpoint = open_checkpoint(self.folder / "checkpoint-1")
        checked = _bytes_read()
        reader = _Weighed(checkpoint)
        self.backend.load(self.state, reader)
        _meet()
        return {
            "checking bytes": checked - read,
            "reading bytes": _bytes_read() - checked,
            "bytes held": reader.held,
            "bytes of all files": sum(record.size for record in checkpoint.facts.files.values()),
        }


class _Weighed:
    """A checkpoint's reader that counts the bytes of what is to be filled."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.held = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def tensors(self, tensors: Mapping[str, Any]) -> None:
        self.held += sum(part.nbytes for tensor in tensors.values() for part in _parts(tensor))
        self._reader.tensors(tensors)


def _parts(tensor: Any) -> Iterator[torch.Tensor]:
    from swift.checkpoint import Boxes

    if isinstance(tensor, Boxes):
        yield from tensor.boxes.values()
    else:
        yield tensor


def _torch(state: Any, folder: Path) -> None:
    if not dist.is_initialized() or dist.get_rank() == 0:
        both = {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict()}
        torch.save(both, folder / "state.pt")


def _fsdp(state: Any, folder: Path) -> None:
    """Weights and moments as DTensors, as `get_state_dict` makes them of an optimizer that knows DTensors."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import DTensor

    tensors: dict[str, Any] = {}
    for part in state.parts:
        whole = part.parameter
        tensors[f"model.{part.name}"] = whole.detach()
        for slot, value in state.optimizer.state[part.local].items():
            cut = value.shape == part.local.shape and value.ndim > 0
            tensors[f"optim.{part.name}.{slot}"] = (
                DTensor.from_local(value, whole.device_mesh, whole.placements, shape=whole.shape, stride=whole.stride())
                if cut
                else value
            )
    dcp.save(tensors, checkpoint_id=folder)


def _deepspeed(state: Any, folder: Path) -> None:
    state.engine.save_checkpoint(str(folder))


def _megatron(state: Any, folder: Path) -> None:
    """Save as Megatron's own training does, in the format torch_dist."""
    from megatron.core import dist_checkpointing

    from swift_backend_megatron import megatron_runtime

    form = {
        "distrib_optim_sharding_type": "fully_reshardable",
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
    }
    with megatron_runtime.active():
        (chunk,) = (each.sharded_state_dict(metadata=form) for each in state.built.chunks)
        optimizer = state.optimizer.sharded_state_dict(chunk, metadata=form)
        everything = {"iteration": 1, "checkpoint_version": 3.0, "model": chunk, "optimizer": optimizer}
        dist_checkpointing.save(everything, str(folder), validate_access_integrity=False)


def _meet() -> None:
    if dist.is_initialized():
        dist.barrier()


def _bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))

"""Compare saving and reading of checkpoints in swift's format and in each engine's own, at three model sizes.

Each engine and size is a run of two steps. Then an observer saves the state alternately in swift's format, in the
background, and in the engine's format. Not every engine syncs its files before a save returns, so the engine's time is
also measured with all files synced, as in swift.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from benchmarks.commands import UNSAVED, swift_run
from benchmarks.facts import Figure, MemoryWatch
from benchmarks.inputs import LARGE, MIDDLE, MODEL, ensure
from swift.hookspecs import hookimpl

ENGINES = {
    "torch": ("--backend", "torch"),
    "fsdp 2": ("--backend", "fsdp", "--nproc", "2"),
    "zero3 2": ("--deepspeed", "zero3", "--nproc", "2"),
    "zero2 2": ("--deepspeed", "zero2", "--nproc", "2"),
    "megatron tp 2": ("--backend", "megatron", "--tp", "2", "--nproc", "2"),
}
SIZES = {"5M": MODEL, "28M": MIDDLE, "84M": LARGE}
ROUNDS = 3
ROUNDS_VARIABLE = "SWIFT_BENCHMARK_ROUNDS"

Found = list[dict[str, Any]]


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure()
    sizes, rounds = (dict(list(SIZES.items())[:1]), 1) if quick else (SIZES, ROUNDS)
    found = {engine: {size: _found(engine, model, rounds) for size, model in sizes.items()} for engine in ENGINES}
    by_name = {f"{engine}, {size}": _ratios(each) for engine, own in found.items() for size, each in own.items()}
    figures = [
        Figure(f"{name}: {what}", ratios[what], unit, at_most=goal)
        for what, (unit, goal) in FIGURES.items()
        for name, ratios in by_name.items()
    ]
    return figures, {"rounds": rounds, "found": found, "notes": NOTES}


def _found(engine: str, model: Path, rounds: int) -> Found:
    folder = swift_run(
        f"checkpoints-{engine.replace(' ', '-')}", "--per_device_train_batch_size", "2", "--max_steps", "2", *UNSAVED,
        *ENGINES[engine], observers=["checkpoint-watch"], model=model, variables={ROUNDS_VARIABLE: str(rounds)},
    )  # fmt: skip
    return [json.loads(path.read_text()) for path in sorted(folder.glob("checkpoints-*.json"))]


def _ratios(found: Found) -> dict[str, float]:
    """Return the figures of a run; all processes begin and end together, so that the first speaks for all."""
    first, weights = found[0]["rounds"], found[0]["with_model_weights"]
    synchronous = median(each["swift"] for each in first)
    stalls = [max(each["stall"] for each in ranks) for ranks in zip(*(each["rounds"] for each in found), strict=True)]
    memory = {name: max(each["memory"][name] / each["memory"]["largest tensor"] for each in found) for name in SAVES}
    loads = [each["load"] for each in found]
    values = (
        median(each["swift"] / each["native, synced"] for each in first),
        median(each["swift"] / each["native"] for each in first),
        median(stall / each["swift"] for stall, each in zip(stalls, first, strict=True)),
        weights["swift"] / synchronous,
        weights["stall"] / weights["swift"],
        *memory.values(),
        max(each["reading bytes"] / each["bytes held"] for each in loads),
        max(each["checking bytes"] / each["bytes of all files"] for each in loads),
    )
    return dict(zip(FIGURES, values, strict=True))


SAVES = ("swift", "with model weights")
FIGURES: dict[str, tuple[str, float | None]] = {
    "save over the engine's own, synced": ("x", 1.3),
    "save over the engine's own, as it is": ("x", None),
    "stall in the background over a synchronous save": ("x", 0.1),
    "save with weights ready to load over one without": ("x", None),
    "stall with weights ready to load over the save": ("x", 0.1),
    "memory of a save, in largest tensors": ("", 2),
    "the same with weights ready to load": ("", 2),
    "bytes read over bytes held": ("x", None),
    "share of the files that a process checks": ("", None),
}
NOTES: Sequence[str] = (
    "What is on disk for good when a save returns. Swift: every file and folder. FSDP's and Megatron's "
    "own (torch.distributed.checkpoint, and dist_checkpointing in torch_dist): their files. torch.save and DeepSpeed's "
    "own: nothing. Synced means that every file of the engine's own was synced too before the clock was stopped.",
    "Both save weights, moments and step counts in fp32; what the engine keeps twice (ZeRO's working weights) its own "
    "format keeps twice. Weights ready to load are left out except where they are named.",
    "The stall is the time until training may go on, and that for which the next update waits for the copy, on the "
    "slowest process. It has in it that other processes had the processor meanwhile, which a save that waits for the "
    "disk has less of.",
    "With weights ready to load there is one round, not a median, and it has in it what is done once in a run: finding "
    "out names and precisions of the model, its tokenizer. Its stall is compared with that longer save.",
    "Memory is that of the process with the most, above what it had before the save. Bytes are those that a process "
    "requested from the kernel.",
)


if TYPE_CHECKING:
    from swift.contracts import Objective, Run, StepResult
    from swift.data.batch import Batch

CODE = {
    "torch": "swift.backends.torch.checkpoint",
    "fsdp": "swift.backends.torch.checkpoint",
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
        self.backend = import_module(CODE[self.name])
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
            then=lambda _: self._step_during_save(pending[0]),
        )
        return {
            **found,
            "swift": swift["first"],
            "call": background["first"],
            "wait": pending[0].waited,
            "stall": background["first"] + pending[0].waited,
            "in the background": background["both"],
        }

    def _step_during_save(self, pending: Any) -> None:
        """Run the next step, during which the copy is made, and wait for the end of the save."""
        import_module(CODE[self.name].replace("checkpoint", "step")).train_step(
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
        from swift.export.stored import write_model_weights

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
        if self.run.world.rank == 0:
            for path in folder.rglob("*"):
                handle = os.open(path, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)

    def _memory(self) -> dict[str, float]:
        """Return the peak of a save above what there was before it, in MiB, and the size of the largest tensor."""
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
        inputs = {"run": self.run, "state": self.state, "reader": reader}
        self.backend.load(**{name: inputs[name] for name in inspect.signature(self.backend.load).parameters})
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
    from swift.checkpoint import TensorSlices

    if isinstance(tensor, TensorSlices):
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

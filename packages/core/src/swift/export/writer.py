"""Model weights as Hugging Face lays them out: safetensors in shards of a bounded size, and the index over them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from swift.checkpoint.checksums import SyncedFile, write_json
from swift.checkpoint.safetensors_write import safetensors_layout, tensor_bytes
from swift.errors import ExportError

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class TensorSpec:
    """Dtype and shape of a tensor in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


class ShardedSafetensorsWriter:
    """Writes a stream of tensors, in any order, into the shards that were planned from their shapes.

    Since shapes are known before values, every tensor has its place in a file before it arrives: each is written
    there and forgotten, and one that never arrives is an error.
    """

    def __init__(self, folder: Path, specs: Mapping[str, TensorSpec], *, shard_bytes: int) -> None:
        self._folder = folder
        self._specs = specs
        self._missing = dict.fromkeys(specs)
        self._shards = _deal(specs, shard_bytes)
        self._position: dict[str, tuple[str, int]] = {}
        self._files: dict[str, SyncedFile] = {}
        for file, names in self._shards.items():
            entries = {name: (specs[name].dtype, specs[name].shape) for name in names}
            lead, starts = safetensors_layout(entries, {"format": "pt"})
            self._position |= {name: (file, start) for name, start in starts.items()}
            self._files[file] = SyncedFile(folder / file)
            self._files[file].write(lead)

    def __enter__(self) -> ShardedSafetensorsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write one tensor, in the precision that was planned for it."""
        if name not in self._missing:
            state = "twice" if name in self._specs else "but the model has no such weight"
            raise ExportError(f"{name} was to be exported {state}.")
        spec = self._specs[name]
        if tuple(tensor.shape) != spec.shape:
            raise ExportError(
                f"{name} has shape {tuple(tensor.shape)}, the model's configuration requires {spec.shape}."
            )
        file, start = self._position[name]
        self._files[file].write(tensor_bytes(tensor.to(spec.dtype)), at=start)
        del self._missing[name]

    def finish(self) -> None:
        """Check that everything has arrived, and write the index."""
        if self._missing:
            raise ExportError(
                f"{len(self._missing)} weights were never passed, the first is {next(iter(self._missing))}."
            )
        for file in self._files.values():
            file.finish()
        if len(self._shards) > 1:
            total = sum(spec.nbytes for spec in self._specs.values())
            where = {name: file for file, names in self._shards.items() for name in names}
            write_json(
                self._folder / WEIGHTS_INDEX,
                {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))},
            )


def _deal(specs: Mapping[str, TensorSpec], shard_bytes: int) -> dict[str, list[str]]:
    """Names by file, in order; a tensor larger than a shard gets a file of its own."""
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name, spec in specs.items():
        if shards[-1] and spec.nbytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= spec.nbytes
    if len(shards) == 1:
        return {WEIGHTS: shards[0]}
    return {f"model-{at:05d}-of-{len(shards):05d}.safetensors": names for at, names in enumerate(shards, 1)}

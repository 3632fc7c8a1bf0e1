"""Megatron's own checkpoints (`torch_dist`), read for `swift convert`, whatever layout wrote them.

Megatron writes whole tensors under its own names, cut into chunks. The model is built once more in one process,
without its weights taking memory, to learn which box of which of Megatron's tensors each Hugging Face tensor is; then
exactly these parts are read. The table of contents is a pickle: it is opened by a reader that makes the few classes of
values that a table consists of, and empty objects instead of anything else, so that nothing in a file is run.
"""

from __future__ import annotations

import io
import pickle
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import EnumType
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from swift.checkpoint import TensorSlices
from swift.contracts import ModelSource, ThirdPartyCheckpoint
from swift.errors import CheckpointError
from swift.toolkit import check_archive
from swift.untrusted import check_regular, inside, read_bytes
from swift_backend_megatron.masters import MOMENTS
from swift_backend_megatron.on_disk import MASTERS, SLOT, SavedShard, learn
from swift_backend_megatron.tensor_map import TensorMap, Tile

_TABLE = 1 << 30
"""Bytes of a table of contents: that of a large model on thousands of processes has some hundred megabytes."""


def open_native(folder: Path) -> ThirdPartyCheckpoint | None:
    """Open a folder that Megatron saved into, or the newest of its `iter_` folders; None where it is none."""
    found = _inside(folder)
    return None if found is None else TorchDist(found)


def _inside(folder: Path) -> Path | None:
    steps = sorted(each for each in folder.glob("iter_*") if _is_one(each))
    if _is_one(folder):
        return folder
    return steps[-1] if steps else None


def _is_one(folder: Path) -> bool:
    return (folder / ".metadata").is_file() and (folder / "metadata.json").is_file()


class TorchDist(ThirdPartyCheckpoint):
    """A folder in the format `torch_dist`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reader = _TorchDistReader(folder)
        self._stored = self._reader.read_metadata().state_dict_metadata
        common = _common(folder)
        named = re.fullmatch(r"iter_0*([0-9]{1,15})", folder.name)
        self.step = _whole(common.get("iteration")) or int(named[1] if named else 0)
        self.rows_per_step = _whole(getattr(common.get("args"), "global_batch_size", 0))
        self.description = "Megatron's torch_dist checkpoint"
        if not any(key.startswith(SLOT.format(MOMENTS[0])) for key in self._stored):
            self.description += (
                ", with its optimizer's state in flat shards that have no names (saved as fully_reshardable they would "
                "have): weights alone are read"
                if any("optimizer" in key for key in self._stored)
                else ", without the optimizer's state"
            )
        self._tensor_map: TensorMap = {}
        self._shards: dict[int, list[SavedShard]] = {}

    def attach(self, source: ModelSource) -> None:
        """Learn where the model's tensors lie; names are those on disk."""
        on_disk = learn(source)
        self._tensor_map, self._shards = on_disk.tensor_map, on_disk.shards
        for shard in (shard for shards in self._shards.values() for shard in shards):
            stored = self._stored.get(shard.key)
            size = _size(stored)
            if size != shard.whole:
                found = "no" if stored is None else f"a {size}"
                raise CheckpointError(
                    f"{self._folder} has {found} {shard.key}, which the model has in the shape {shard.whole}.",
                    hint="Name with --model the model that training started from.",
                )

    def labels(self) -> int | None:
        """Return the rows of the output layer; None where the checkpoint has none."""
        head = self._stored.get("output_layer.weight")
        return None if head is None else next(iter(_size(head) or ()), None)

    def names(self) -> Collection[str]:
        return self._tensor_map.keys()

    def read(self, name: str) -> Mapping[str, torch.Tensor]:
        entry = self._tensor_map[name]
        found: dict[str, torch.Tensor] = {}
        prefixes_of = {"weight": (*MASTERS, ""), **{each: (SLOT.format(each),) for each in MOMENTS}}
        for slot, prefixes in prefixes_of.items():
            whole = torch.empty(entry.shape, dtype=torch.float32)
            if all(self._fill(whole, tile, prefixes, slot) for tile in entry.tiles):
                found[slot] = whole
        if MOMENTS[0] in found:
            found["step"] = torch.tensor(float(self.step))
        return found

    def _fill(self, whole: torch.Tensor, tile: Tile, prefixes: tuple[str, ...], slot: str) -> bool:
        values = torch.empty(tile.numel)
        for shard in self._shards[id(tile.tensor)]:
            key = next((prefix + shard.key for prefix in prefixes if prefix + shard.key in self._stored), None)
            if key is None:
                return False
            found = self._read_rows(key, shard, tile)
            if found is not None:
                first, read = found
                values[first : first + read.numel()] = read
        shift = tile.shift if slot == "weight" else 0.0
        whole[tile.region] = values.view(tile.sizes) + shift
        return True

    def _read_rows(self, key: str, shard: SavedShard, tile: Tile) -> tuple[int, torch.Tensor] | None:
        """Read the rows of a saved shard that are in a box; return where in the box they begin, and the values."""
        inner = shard.shape[1:]
        width = prod(inner)
        first = max(tile.start, shard.start)
        last = min(tile.start + tile.numel, shard.start + shard.shape[0] * width)
        if first >= last:
            return None
        begin, end = (first - shard.start) // width, -(-(last - shard.start) // width)
        rows = torch.empty(end - begin, *inner)
        stored = self._stored[key]
        target = rows.to(stored.properties.dtype)
        offset = list(shard.offset)
        offset[shard.leading] += begin
        self._reader.fill(
            key, TensorSlices(stored.size, [(tuple(offset), target[(None,) * shard.leading])], dtype=target.dtype)
        )
        flat = target.float().reshape(-1)
        skipped = first - shard.start - begin * width
        return first - tile.start, flat[skipped : skipped + last - first]


class _TorchDistReader(FileSystemReader):
    """torch's reader, with a table of contents that runs nothing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._table: Any = None

    def read_metadata(self, *_: Any, **__: Any) -> Any:
        if self._table is None:
            file = Path(str(self.path)) / ".metadata"
            try:
                self._table = _Unpickler(io.BytesIO(read_bytes(file, CheckpointError, limit=_TABLE))).load()
            except CheckpointError:
                raise
            except Exception as error:
                raise CheckpointError(f"{file} cannot be read: {error}") from error
            _check_table(self._table, file)
        return self._table

    def fill(self, key: str, tiles: torch.Tensor) -> None:
        planner = DefaultLoadPlanner(flatten_state_dict=False)
        with warnings.catch_warnings(), _damage(Path(str(self.path)), key):
            warnings.simplefilter("ignore")  # of there being one process
            load({key: tiles}, storage_reader=self, planner=planner, no_dist=True)


@contextmanager
def _damage(folder: Path, key: str) -> Iterator[None]:
    """Say that a tensor cannot be read where torch's reader fails on it, in one line."""
    try:
        yield
    except (CheckpointException, LookupError, TypeError, ValueError, AttributeError, RuntimeError, OSError) as error:
        failures = error.failures if isinstance(error, CheckpointException) else {}
        cause = next((first for first, _ in failures.values()), error)
        if isinstance(cause, CheckpointError):
            raise cause from None
        cause_line = f"{type(cause).__name__}: {cause}".splitlines()[0]
        raise CheckpointError(
            f"{folder}: {key} cannot be read ({cause_line[:200]}).",
            hint="Copy the folder again, or convert an earlier one.",
        ) from None


def _check_table(table: Any, file: Path) -> None:
    """Refuse a table of contents of another kind, and one whose tensors lie outside its folder or in no file."""
    stored, locations = getattr(table, "state_dict_metadata", None), getattr(table, "storage_data", None)
    valid = isinstance(stored, dict) and all(isinstance(key, str) for key in stored)
    if not valid or not isinstance(locations, dict):
        raise CheckpointError(f"{file} is no table of contents of torch.distributed.checkpoint.")
    for name in {getattr(location, "relative_path", None) for location in locations.values()}:
        check_regular(inside(file.parent, name, CheckpointError, source=str(file)), CheckpointError)


class _Ignored:
    """Replaces an object that is of no use here."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            vars(self).update(state)


class _Unpickler(pickle._Unpickler):
    """Makes values of a table of contents, and nothing else.

    In Python, whose memo is a mapping: that of the one in C is an array as long as the largest number in the file.
    """

    _VALUES = frozenset(
        {
            metadata.Metadata, metadata.TensorStorageMetadata, metadata.BytesStorageMetadata, metadata.MetadataIndex,
            metadata.ChunkStorageMetadata, metadata.TensorProperties, metadata._MEM_FORMAT_ENCODING,
            filesystem._StorageInfo, torch.Size,
        }
    )  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        for value in self._VALUES:
            if (value.__module__, value.__qualname__) == (module, name):
                return value
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("torch.serialization", "_get_layout"):
            return lambda _: torch.strided
        if (module, name) == ("builtins", "getattr"):
            return _member
        return _Ignored


def _member(kind: Any, name: str) -> Any:
    """Return a member of an enumeration as Python 3.11.0 to 3.11.3 pickles it, and no other attribute."""
    return kind[name] if isinstance(kind, EnumType) else _Ignored()


def _common(folder: Path) -> Mapping[str, Any]:
    file = folder / "common.pt"
    if not file.is_file():
        return {}
    try:
        check_archive(file, CheckpointError)
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(str(file))
        with torch.serialization.safe_globals([(_Ignored, name) for name in unknown]):
            content: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # it says the step and the size of a batch, of which the first is in the folder's name too
        return {}
    return content if isinstance(content, Mapping) else {}


def _whole(number: object) -> int:
    """Return a number of steps or rows; 0 where it is none."""
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 53 else 0


def _size(stored: object) -> tuple[int, ...] | None:
    """Return the shape of a stored tensor; None where it is no tensor."""
    size = getattr(stored, "size", None)
    return tuple(size) if isinstance(size, torch.Size) else None

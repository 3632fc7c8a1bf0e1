"""Index of a store: what is known of every sample without reading its tokens, counted when the store is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from swift.files import replace_file

VALUE = "value."
"""How the column of a number per sample begins that an encoding declares; NaN where a sample has none."""
MANIFEST = "manifest.json"
INDEX_FILE = "index.json"
"""What joins the shards of tokenised data."""
FORMAT = "swift tokenised data 1"
"""What it says first, and changes when a release cannot read what another one wrote."""
SHARD_NAME = re.compile(r"shard-(\d{5})-of-(\d{5})")
INDEX: Mapping[str, Any] = {
    "segment_starts": np.int64,
    "sample_starts": np.int64,
    "lengths": np.int64,
    "loss_weights": np.float64,
}
"""Columns of the index: where segments start among the tokens, samples among the segments, and sums per sample."""
_BLOCK = 1 << 12
"""Numbers that are held in memory at a time."""


def is_tokenised(folder: Path) -> bool:
    """Return whether a folder holds tokenised data that was built beforehand, joined or not yet."""
    try:
        if (folder / INDEX_FILE).is_file():
            with (folder / INDEX_FILE).open("rb") as file:
                return FORMAT.rpartition(" ")[0].encode() in file.read(64)
        return folder.is_dir() and any(SHARD_NAME.fullmatch(path.name) for path in folder.iterdir())
    except (OSError, ValueError):  # a name that no file can have, or nobody may read
        return False


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return what a store's manifest says; raise `ValueError` for what is none."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict) or not isinstance(manifest.get("lengths"), dict):
        raise ValueError(f"{folder / MANIFEST} is not a store's")
    if any("/" in name or "\\" in name for name in manifest["lengths"]):
        raise ValueError(f"{folder / MANIFEST} names files outside of the folder")
    return manifest


def write_index(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Count the samples of a store whose other columns are written, and write its manifest last."""
    for counted, name in (("segment_lengths", "segment_starts"), ("segment_counts", "sample_starts")):
        write_column(folder / f"{name}.bin", _cumulated(folder / f"{counted}.bin"))
    segments = map_column(folder / "segment_starts.bin", np.int64)
    samples = map_column(folder / "sample_starts.bin", np.int64)
    weights = folder / "weights.bin"
    write_column(folder / "lengths.bin", (np.diff(edges) for edges in _edges(segments, samples)))
    write_column(folder / "loss_weights.bin", _sums(weights, _edges(segments, samples)))
    longest = max((int(block.max()) for block in blocks_of(folder / "segment_lengths.bin", np.int64)), default=0)
    index = {"lengths": {}, "longest": longest, "values": _present(folder, manifest["lengths"])}
    index["lengths"] = {
        name: (folder / f"{name}.bin").stat().st_size // np.dtype(dtype).itemsize for name, dtype in INDEX.items()
    }
    replace_file(folder / MANIFEST, json.dumps({**manifest, "index": index}))


def map_column(path: Path, dtype: Any) -> np.ndarray:
    """Return a column, memory-mapped."""
    size = path.stat().st_size
    return np.memmap(path, dtype=dtype, mode="r") if size else np.zeros(0, dtype=dtype)


def starts_of(lengths: np.ndarray) -> np.ndarray:
    """Return where each of some stretches starts that lie end to end, and where the last one ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])


def write_column(path: Path, blocks: Iterable[np.ndarray]) -> None:
    """Write a column; a process that has the file mapped keeps what was there before."""
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb") as file:
        for block in blocks:
            file.write(block.tobytes())
    temporary.replace(path)


def blocks_of(path: Path, dtype: Any) -> Iterator[np.ndarray]:
    """Yield a column piece by piece, read from its file: nothing of it stays mapped."""
    with path.open("rb") as file:
        while len(block := np.fromfile(file, dtype=dtype, count=_BLOCK)):
            yield block


def _cumulated(path: Path) -> Iterator[np.ndarray]:
    """Yield the sums of all numbers before each one, and at last of all."""
    yield np.zeros(1, dtype=np.int64)
    total = 0
    for block in blocks_of(path, np.int64):
        sums = np.cumsum(block) + total
        total = int(sums[-1])
        yield sums


def _edges(segments: np.ndarray, samples: np.ndarray) -> Iterator[np.ndarray]:
    """Yield where samples begin among the tokens, some at a time, and where the last of them ends."""
    for first in range(0, len(samples) - 1, _BLOCK):
        yield np.asarray(segments[samples[first : first + _BLOCK + 1]])


def _sums(path: Path, edges: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the sums of the weights between each two edges."""
    with path.open("rb") as file:
        for each in edges:
            part = np.fromfile(file, dtype=np.float32, count=int(each[-1] - each[0]))
            yield np.add.reduceat(part.astype(np.float64), each[:-1] - each[0])


def _present(folder: Path, lengths: Mapping[str, int]) -> list[str]:
    """Return the numbers per sample that any sample has."""
    found = []
    for name in lengths:
        if name.startswith(VALUE):
            blocks = blocks_of(folder / f"{name}.bin", np.float64)
            if any(not np.isnan(block).all() for block in blocks):
                found.append(name.removeprefix(VALUE))
    return found

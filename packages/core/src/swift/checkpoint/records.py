"""Files of a checkpoint without the tensors in them: JSON, sizes and checksums, and making them last on disk.

Apart from the container of tensors, so that reading a manifest does not import torch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import xxhash
from pydantic import BaseModel, ConfigDict

_BLOCK = 8 * 2**20


class FileRecord(BaseModel):
    """What the manifest says of a file: enough to see that it is whole and unaltered."""

    model_config = ConfigDict(frozen=True)
    size: int
    xxh3_128: str


class HashingFile:
    """A file that is hashed while it is written and is on disk, not only in the cache, when it is closed."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self._hash = xxhash.xxh3_128()
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append."""
        self._file.write(data)
        self._hash.update(data)
        self._size += len(data)

    def finish(self) -> FileRecord:
        """Close it for good."""
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        return FileRecord(size=self._size, xxh3_128=self._hash.hexdigest())

    def __enter__(self) -> HashingFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def write_json(path: Path, value: Any) -> FileRecord:
    """Write a JSON file."""
    with HashingFile(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())
        return file.finish()


def hash_file(path: Path) -> FileRecord:
    """Size and checksum of a file that is there already."""
    digest = xxhash.xxh3_128()
    size = 0
    buffer = bytearray(_BLOCK)
    view = memoryview(buffer)
    with path.open("rb") as file:
        while read := file.readinto(buffer):
            digest.update(view[:read])
            size += read
    return FileRecord(size=size, xxh3_128=digest.hexdigest())


def sync(path: Path) -> None:
    """Make a file or the entries of a folder last through a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

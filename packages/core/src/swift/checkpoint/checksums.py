"""Files of a checkpoint without the tensors in them: JSON, sizes and checksums, and making them last on disk.

Apart from the container of tensors, so that reading a manifest does not import torch.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Self

import xxhash
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from swift.errors import CheckpointError
from swift.untrusted import check_regular

_BLOCK = 2**20
_SYNC_EVERY = 64 * 2**20
_READERS = 4
"""Files that are hashed at a time: one stream does not use up a fast disk or a network."""


class FileRecord(BaseModel):
    """The manifest's record of a file: enough to detect that it is incomplete or altered."""

    model_config = ConfigDict(frozen=True)
    size: StrictInt = Field(ge=0)
    xxh3_128: StrictStr


class SyncedFile:
    """A file that is on the disk, not only in the cache, when it is finished.

    A thread sees to it while more is being written, so that little is left to wait for at the end.
    """

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self._unsynced = 0
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def write(self, data: bytes | memoryview, at: int | None = None) -> None:
        """At the place `at`, or behind what was written last."""
        if at is not None:
            self._file.seek(at)
        self._file.write(data)
        self._unsynced += len(data)
        if self._unsynced >= _SYNC_EVERY and (self._thread is None or not self._thread.is_alive()):
            self._unsynced = 0
            self._thread = threading.Thread(target=self._sync, daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait for the disk, and close it for good."""
        with self:
            self._file.flush()
            self._join()
            # The kernel tells of a failed write once, to the first call that asks.
            if self._error is not None:
                raise self._error
            os.fsync(self._file.fileno())

    def _sync(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            self._error = error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Leave it as it is: of a file that was not finished, it is not known what is on the disk."""
        self._join()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HashingFile(SyncedFile):
    """Hashed while it is written, from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._hash = xxhash.xxh3_128()
        self._size = 0

    def append(self, data: bytes | memoryview) -> None:
        self.write(data)
        self._hash.update(data)
        self._size += len(data)

    def record(self) -> FileRecord:
        """Finish; what the manifest says of it."""
        self.finish()
        return FileRecord(size=self._size, xxh3_128=self._hash.hexdigest())


def write_json(path: Path, value: Any) -> FileRecord:
    """Write a JSON file with a line for each entry of its sections."""
    with HashingFile(path) as file:
        file.append((_lines(value, 2) + "\n").encode())
        return file.record()


def _lines(value: Any, levels: int, margin: str = "") -> str:
    """Return JSON that is laid out for so many levels, and stands in one line below them.

    An index has as many entries as processes have pieces of tensors, and Python's encoder in C knows no layout.
    """
    if not levels or not value or not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    inner = f"{margin} "
    entries = (f"{inner}{json.dumps(str(key))}: {_lines(each, levels - 1, inner)}" for key, each in value.items())
    return "{\n" + ",\n".join(entries) + f"\n{margin}}}"


def hash_file(path: Path) -> FileRecord:
    """Size and checksum of a file that already exists."""
    digest = xxhash.xxh3_128()
    size = 0
    buffer = bytearray(_BLOCK)
    view = memoryview(buffer)
    with path.open("rb") as file:
        while read := file.readinto(buffer):
            digest.update(view[:read])
            size += read
    return FileRecord(size=size, xxh3_128=digest.hexdigest())


def check_sizes(
    folder: Path,
    records: Mapping[str, FileRecord],
    *,
    if_missing: Callable[[str], str | None] = lambda _: None,
    hint: str | None = None,
) -> None:
    """Refuse a checkpoint with files missing or cut off; sizes reveal most damaged copies."""
    for name, record in records.items():
        path = folder / name
        if not path.exists():
            raise CheckpointError(f"The checkpoint {folder} is incomplete: {name} is missing.", hint=if_missing(name))
        check_regular(path, CheckpointError)
        if (size := path.stat().st_size) != record.size:
            raise CheckpointError(
                f"The checkpoint {folder} is damaged: {name} has {size} bytes instead of {record.size}.", hint=hint
            )


def check_sums(folder: Path, records: Mapping[str, FileRecord], *, hint: str | None = None) -> None:
    """Refuse a checkpoint of which any of these files has other bytes than its record.

    Engines map weights into memory or read them in processes of their own, so that hashing cannot be a part of their
    reading. It goes before it, in blocks; what was read is still in the page cache when an engine reads it.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(lambda name: hash_file(folder / name), records)
        altered = next((name for name, now in zip(records, found, strict=True) if now != records[name]), None)
    if altered is not None:
        raise CheckpointError(
            f"The checkpoint {folder} is damaged: {altered} was altered after it was written (its checksum differs).",
            hint=hint,
        )


def sync(path: Path) -> None:
    """Make a file or the entries of a folder last through a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

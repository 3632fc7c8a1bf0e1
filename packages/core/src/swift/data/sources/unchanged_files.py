"""Data files that are read piece by piece, for as long as a run takes: as they were at first, or not at all.

A file may be cut off, written anew or replaced while rows of it are still to be read. What was planned by its first
state (where lines begin, how many rows there are, under which key its tokens are cached) would then be applied to
another content. So every block is hashed when it is first read, and whoever reads it again gets the same bytes or a
`DataError`. Nothing is memory-mapped, because a mapped file that is cut off kills the process, and no file is held
open, because a data set may have more files than a process may open.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import xxhash

from swift.errors import DataError
from swift.untrusted import open_regular, shown

BLOCK = 1 << 18
"""Bytes that are read and hashed at a time."""

_THIRD_PARTY = {
    b"\x1f\x8b": "compressed with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"\xfd7zXZ\0": "compressed with xz",
    b"PK\x03\x04": "a zip archive",
    b"\xff\xfe": "UTF-16 text, not UTF-8",
    b"\xfe\xff": "UTF-16 text, not UTF-8",
}
"""How files begin that are not what a name like `rows.jsonl` says."""


class SteadyFile:
    """A regular file whose content must not change between two reads of the same bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = shown(path, 1000)
        """For messages."""
        with open_regular(path, DataError) as file:
            self.size = os.fstat(file.fileno()).st_size
        self._hashes: dict[int, int] = {}
        self._number = -1
        self._block = b""

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`."""
        first = start // BLOCK
        if end <= (first + 1) * BLOCK:
            return self._read_block(first)[start - first * BLOCK : end - first * BLOCK]
        last = (end - 1) // BLOCK
        blocks = b"".join(self._read_block(number) for number in range(first, last + 1))
        return blocks[start - first * BLOCK : end - first * BLOCK]

    def blocks(self) -> Iterator[bytes]:
        """Yield the whole content in order."""
        return (self._read_block(number) for number in range(-(-self.size // BLOCK)))

    def text(self, limit: int) -> str:
        """Return the whole of a UTF-8 file, without a byte order mark."""
        if self.size > limit:
            raise DataError(
                f"{self.name} has {self.size:,} bytes, and a file of its kind is read as a whole, up to {limit:,}.",
                hint="Write it as JSONL, with one row per line, which is read in chunks.",
            )
        self.refuse_other_kinds()
        try:
            return b"".join(self.blocks()).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"{self.name} is not UTF-8 text (byte {error.start}).") from None

    def refuse_other_kinds(self) -> None:
        """Raise `DataError` for files that hold something else than UTF-8 text by their first bytes."""
        head = self.read(0, min(self.size, 1024))
        kind = next((kind for start, kind in _THIRD_PARTY.items() if head.startswith(start)), None)
        if kind is None and b"\0" in head:
            kind = "binary (there are NUL bytes in it)"
        if kind is not None:
            raise DataError(
                f"{self.name} cannot be read: it is {kind}.",
                hint="Unpack or convert it first: text is read as UTF-8, and Parquet from files named .parquet.",
            )

    def fingerprint(self) -> str:
        """Return a hash of the content, not of the name or the time."""
        digest = xxhash.xxh3_128(self.size.to_bytes(8, "little"))
        for number in range(-(-self.size // BLOCK)):
            if number not in self._hashes:
                self._read_block(number)
            digest.update(self._hashes[number].to_bytes(8, "little"))
        return digest.hexdigest()

    def as_file(self) -> io.RawIOBase:
        """Return the content as a file object, for readers that want one."""
        return _Reader(self)

    def _read_block(self, number: int) -> bytes:
        if number == self._number:
            return self._block
        start = number * BLOCK
        count = min(BLOCK, self.size - start)
        with open_regular(self.path, DataError) as file:
            try:
                block = os.pread(file.fileno(), count, start)
            except OSError as error:
                raise DataError(f"{self.name} cannot be read: {error.strerror}.") from None
        found = xxhash.xxh3_64_intdigest(block)
        if len(block) != count or self._hashes.setdefault(number, found) != found:
            raise DataError(
                f"{self.name} has changed since the start of this command, while it was being read.",
                hint="Start again when nothing writes to it any more.",
            )
        self._number, self._block = number, block
        return block


class _Reader(io.RawIOBase):
    """A `SteadyFile` with a position."""

    def __init__(self, file: SteadyFile) -> None:
        super().__init__()
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._file.size if size is None or size < 0 else min(self._at + size, self._file.size)
        content = self._file.read(self._at, end) if self._at < end else b""
        self._at += len(content)
        return content

"""Files that are put on the disk while more is written to them."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from swift.checkpoint import checksums as records


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_SYNC_EVERY", 1)


def test_out_of_order_writes_land_at_their_offset(tmp_path: Path) -> None:
    with records.SyncedFile(tmp_path / "file") as file:
        for place in (4, 0, 2):
            file.write(bytes([place, place + 1]), at=place)
        file.finish()
    assert (tmp_path / "file").read_bytes() == bytes(range(6))


def test_what_the_disk_refused_meanwhile_is_an_error_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells of it once, and it is the thread that hears it."""
    sync = os.fsync

    def full(handle: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    file = records.HashingFile(tmp_path / "file")
    file.append(b"weights")
    with pytest.raises(OSError, match="No space left"):
        file.record()

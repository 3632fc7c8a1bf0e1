"""Data files that change after they were opened: rows of another state are never handed out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swift.config.sections import DataSection
from swift.data.corpus import stream_rows
from swift.data.sources.read import read_path
from swift.data.sources.spec import parse_source
from swift.data.sources.unchanged_files import BLOCK, SteadyFile
from swift.errors import DataError

ROWS: list[dict[str, Any]] = [{"prompt": f"question {i}", "completion": f"answer {i}" * 50} for i in range(2000)]
OTHERS: list[dict[str, Any]] = [{"prompt": f"another {i}", "completion": f"thing {i}." * 50} for i in range(2000)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=500, compression="none")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def written_anew(path: Path) -> None:
    write(path, OTHERS)


def replaced(path: Path) -> None:
    write(path.with_stem("new"), OTHERS).replace(path)


def removed(path: Path) -> None:
    path.unlink()


def made_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def changed_in_one_place(path: Path) -> None:
    """Keeps the size and the time: nothing but the content tells."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size - BLOCK // 2 if path.suffix == ".jsonl" else before.st_size // 2)
        file.write(b"1234567890")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = [cut_off, emptied, written_anew, replaced, removed, made_a_pipe, changed_in_one_place]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_changed_row_is_unchanged_or_names_file(tmp_path: Path, suffix: str, change: Callable[[Path], None]) -> None:
    """A row of a changed file is unchanged, or the error names the file."""
    path = write(tmp_path / f"rows{suffix}", ROWS)
    rows = read_path(parse_source(str(path)))
    rows.fingerprint()
    read = [rows[index] for index in range(700)]
    change(path)
    with pytest.raises(DataError, match=rf"rows\{suffix}") as refusal:
        read.extend(rows[index] for index in range(700, len(rows)))  # keeps what was read before the error
    assert len(read) > 700
    assert read == ROWS[: len(read)]
    assert "changed" in str(refusal.value) or "no file" in str(refusal.value) or "pipe" in str(refusal.value)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_appended_rows_are_ignored(tmp_path: Path, suffix: str) -> None:
    """Rows that are appended later are not read and do no harm."""
    path = write(tmp_path / f"rows{suffix}", ROWS)
    rows = read_path(parse_source(str(path)))
    fingerprint = rows.fingerprint()
    with path.open("ab") as file:
        file.write(json.dumps(OTHERS[0]).encode() + b"\n")
    assert list(rows) == ROWS
    assert rows.fingerprint() == fingerprint


def test_every_epoch_of_a_stream_reads_the_same_state(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS)
    section = DataSection(train=(str(path),))
    opened: dict[str, Any] = {}
    assert [row for _, _, row in stream_rows(section.train, section, opened)] == ROWS
    replaced(path)
    with pytest.raises(DataError, match=r"rows\.jsonl has changed"):
        list(stream_rows(section.train, section, opened))


def test_a_folder_of_more_files_than_a_process_may_open_is_read(tmp_path: Path) -> None:
    import resource

    for index in range(200):
        write(tmp_path / f"{index:03}.jsonl", ROWS[index : index + 1])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, limits[1]))
    try:
        rows = read_path(parse_source(str(tmp_path)))
        assert list(rows) == ROWS[:200]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_pieces_of_a_file_are_the_same_however_they_are_cut(tmp_path: Path) -> None:
    content = os.urandom(3 * BLOCK + 17)
    (tmp_path / "file").write_bytes(content)
    file = SteadyFile(tmp_path / "file")
    assert b"".join(file.blocks()) == content
    for start, end in ((0, 0), (0, 1), (BLOCK - 1, BLOCK + 1), (5, 3 * BLOCK + 17), (BLOCK, 2 * BLOCK), (7, 9)):
        assert file.read(start, end) == content[start:end]

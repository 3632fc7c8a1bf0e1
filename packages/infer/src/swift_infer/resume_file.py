"""A file of responses that is resumed after an interruption.

Every line is written at once; a last line without its end counts as never written. A line names its row with a hash
of the row's contents, so that it is never taken for another row's. The settings that decided the responses are stored
in a file next to it.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from swift.errors import DataError
from swift.untrusted import open_regular, read_json
from swift_infer.image_messages import written
from swift_infer.questions import Question

SOURCE = "source_row"
"""Key in every line: the number of its row, and a hash of the row's contents."""
SETTINGS = ".settings.json"
"""Suffix of the file with the settings."""


class ResumeFile:
    """Responses to questions in a file, whose lines are put into the order of the questions once it is complete."""

    def __init__(
        self, path: Path, questions: Iterable[Question], settings: Mapping[str, Any], *, overwrite: bool = False
    ) -> None:
        self._path = path
        self._settings_path = path.with_name(path.name + SETTINGS)
        self._hashes = array("Q", (_hash_of(question) for question in questions))
        self._lines: dict[int, tuple[int, int]] = {}
        """Row → start and end of its line."""
        if path.exists() and not overwrite:
            self._resume(dict(settings))
        else:
            path.unlink(missing_ok=True)
            self._settings_path.write_text(json.dumps(dict(settings), indent=2) + "\n", encoding="utf-8")
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None and not self.left():
            self._sort()

    def left(self) -> list[int]:
        """Return the rows without a response."""
        return [row for row in range(len(self._hashes)) if row not in self._lines]

    def write(self, row: int, line: Mapping[str, Any]) -> None:
        """Append the line of a row to the file, unbuffered."""
        marked = {**line, SOURCE: {"row": row, "hash": f"{self._hashes[row]:016x}"}}
        data = json.dumps(marked, ensure_ascii=False, default=str).encode() + b"\n"
        start = self._file.tell()
        # One call, and nothing kept back: Ctrl-C comes before it or after it.
        self._file.write(data)
        self._lines[row] = (start, start + len(data))

    def _resume(self, settings: Mapping[str, Any]) -> None:
        self._check_settings(settings)
        end = 0
        with open_regular(self._path, DataError) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                self._lines[self._row_of(line, number)] = (end, end + len(line))
                end += len(line)
        os.truncate(self._path, end)

    def _check_settings(self, settings: Mapping[str, Any]) -> None:
        try:
            before = read_json(self._settings_path, DataError)
        except DataError:
            raise self._other(
                f"{self._path} exists, but its settings file {self._settings_path} cannot be read."
            ) from None
        if not isinstance(before, dict):
            raise self._other(f"{self._settings_path} does not hold the settings of {self._path.name}.")
        for name in dict.fromkeys([*settings, *before]):
            if before.get(name) != settings.get(name):
                raise self._other(
                    f"{self._path} was made with {name} {_shown(before.get(name))}; now it is "
                    f"{_shown(settings.get(name))}."
                )

    def _row_of(self, line: bytes, number: int) -> int:
        try:
            source = json.loads(line)[SOURCE]
            row, found = source["row"], int(source["hash"], 16)
        except (ValueError, KeyError, TypeError, RecursionError):
            row = found = None
        if not isinstance(row, int) or isinstance(row, bool):
            raise self._other(f"{self._path}:{number} was not written by swift infer.") from None
        if not 0 <= row < len(self._hashes) or self._hashes[row] != found:
            raise self._other(f"{self._path}:{number} was made from another version of row {row + 1} of the data.")
        return row

    def _other(self, message: str) -> DataError:
        return DataError(message, hint="Choose another --result_path, or start over with --overwrite.")

    def _sort(self) -> None:
        """Put the lines into the order of their rows."""
        spans = [self._lines[row] for row in range(len(self._hashes))]
        if spans == sorted(spans):
            return
        ordered = self._path.with_name(f".{self._path.name}.ordered")
        with self._path.open("rb") as file, ordered.open("wb") as out:
            for start, end in spans:
                file.seek(start)
                out.write(file.read(end - start))
            out.flush()
            os.fsync(out.fileno())
        ordered.replace(self._path)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file of responses."""
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _hash_of(question: Question) -> int:
    contents = [written(question.messages), list(question.tools), question.expected, dict(question.extras)]
    text = json.dumps(contents, sort_keys=True, ensure_ascii=False, default=str)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)

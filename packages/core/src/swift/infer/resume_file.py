"""A file of answers that is written as they come, and resumed after an interruption.

Every line is complete or absent: it is written at once, and a last line without its end (of a machine that went down)
counts as never written. Lines say which row they answer and what that row held, so that an answer is never taken for
another row's. The settings that decided the answers are stored in a file next to it.
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
from swift.infer.image_messages import written
from swift.infer.questions import Question
from swift.untrusted import open_regular, read_json

ASKED = "asked"
"""In every line: the number of the row that it answers, and a hash of what that row held."""
SETTINGS = ".settings.json"
"""Added to the name of the file of answers: how they were made."""


class ResumeFile:
    """Answers to questions, in a file. Lines are in the order of the questions once all are answered."""

    def __init__(
        self, path: Path, questions: Iterable[Question], settings: Mapping[str, Any], *, overwrite: bool = False
    ) -> None:
        self._path = path
        self._beside = path.with_name(path.name + SETTINGS)
        self._hashes = array("Q", (_hash_of(question) for question in questions))
        self._lines: dict[int, tuple[int, int]] = {}
        """Row → where its line begins and ends."""
        if path.exists() and not overwrite:
            self._go_on(dict(settings))
        else:
            path.unlink(missing_ok=True)
            self._beside.write_text(json.dumps(dict(settings), indent=2) + "\n", encoding="utf-8")
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
        """Return the rows without an answer."""
        return [row for row in range(len(self._hashes)) if row not in self._lines]

    def write(self, row: int, line: Mapping[str, Any]) -> None:
        """Write the answer to a row to disk before the next one is looked at."""
        marked = {**line, ASKED: {"row": row, "hash": f"{self._hashes[row]:016x}"}}
        data = json.dumps(marked, ensure_ascii=False, default=str).encode() + b"\n"
        start = self._file.tell()
        # One call, and nothing kept back: Ctrl-C comes before it or after it.
        self._file.write(data)
        self._lines[row] = (start, start + len(data))

    def _go_on(self, settings: Mapping[str, Any]) -> None:
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
            before = read_json(self._beside, DataError)
        except DataError:
            raise self._other(f"{self._path} is there already, and nothing says how it was made.") from None
        if not isinstance(before, dict):
            raise self._other(f"{self._beside} says nothing about how {self._path.name} was made.")
        for name in dict.fromkeys([*settings, *before]):
            if before.get(name) != settings.get(name):
                raise self._other(
                    f"The answers in {self._path} were made with {name} {_shown(before.get(name))}; now it is "
                    f"{_shown(settings.get(name))}."
                )

    def _row_of(self, line: bytes, number: int) -> int:
        try:
            asked = json.loads(line)[ASKED]
            row, found = asked["row"], int(asked["hash"], 16)
        except (ValueError, KeyError, TypeError, RecursionError):
            row = found = None
        if not isinstance(row, int) or isinstance(row, bool):
            raise self._other(f"{self._path}:{number} is not a line that swift infer wrote.") from None
        if not 0 <= row < len(self._hashes) or self._hashes[row] != found:
            raise self._other(
                f"{self._path}:{number} answers row {row + 1} of another input: that row has changed since."
            )
        return row

    def _other(self, message: str) -> DataError:
        return DataError(message, hint="Choose another --result_path, or start over with --overwrite.")

    def _sort(self) -> None:
        """Put the lines into the order of their rows, unless they are."""
        places = [self._lines[row] for row in range(len(self._hashes))]
        if places == sorted(places):
            return
        ordered = self._path.with_name(f".{self._path.name}.ordered")
        with self._path.open("rb") as file, ordered.open("wb") as out:
            for start, end in places:
                file.seek(start)
                out.write(file.read(end - start))
            out.flush()
            os.fsync(out.fileno())
        ordered.replace(self._path)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file of answers."""
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _hash_of(question: Question) -> int:
    held = [written(question.messages), list(question.tools), question.expected, dict(question.extras)]
    text = json.dumps(held, sort_keys=True, ensure_ascii=False, default=str)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)

"""Types of configuration fields with bounds, and a check of every value.

Bounds are far beyond practical values. They report a typo (`1e30` steps, a name of megabytes) where it was typed,
before it causes an overflow or a million processes.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

LARGEST = 2**31 - 1
MOST_PROCESSES = 1024
"""On one machine."""
_DEPTH = 30
_NUMBER = 1e15
_TEXT = 4096
_FILE_NAME = 255
_FOLDERS = 200


def _named(text: str) -> str:
    """Refuse an invalid name of a file or folder before a system call does."""
    if not text.strip():
        raise ValueError("must not be empty (leave it out to use the default)")
    if text.count("/") > _FOLDERS:
        raise ValueError(f"must not have more than {_FOLDERS} folders")
    if len(text) > _TEXT or any(len(part.encode("utf-8", "replace")) > _FILE_NAME for part in text.split("/")):
        raise ValueError(f"must not be longer than {_FILE_NAME} bytes ({_TEXT} characters with its folders)")
    return text


def _not_empty(value: object) -> object:
    """Refuse an empty string before it becomes the path of the working folder."""
    return _named("") if value == "" else value


def _file_path(path: Path) -> Path:
    _named(str(path))
    return path


def _folder_name(text: str) -> str:
    path = Path(text)
    if path.is_absolute() or ".." in path.parts or path == Path():
        raise ValueError("must be a relative folder name without '..'")
    return text


def _below_one(number: float) -> float:
    if number == 1:
        raise ValueError("must be less than 1")
    return number


def _interval(value: Any) -> int | float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if 0 < number < 1:
        return number
    if number.is_integer() and 1 <= number <= LARGEST:
        return int(number)
    raise ValueError("must be a whole number of steps (at least 1) or a fraction of all steps, such as 0.1")


Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
BelowOne = Annotated[Fraction, AfterValidator(_below_one)]
Steps = Annotated[int, Field(ge=1, le=LARGEST)]
"""A count of steps, evaluations or checkpoints, at least 1."""
Interval = Annotated[int | float, BeforeValidator(_interval)]
"""Every N steps, or a fraction of all steps, as in the Trainer: 0.1 is ten times a run, 1.0 is after each step."""
Rows = Annotated[int, Field(ge=1, le=2**24)]
Tokens = Annotated[int, Field(ge=1, le=2**27)]
Ways = Annotated[int, Field(ge=1, le=2**20)]
"""A parallel size."""
Threads = Annotated[int, Field(ge=1, le=MOST_PROCESSES)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""A seed that all generators accept: numpy's range is the smallest."""
Name = Annotated[str, AfterValidator(_named)]
Pattern = Annotated[str, Field(min_length=1, max_length=_TEXT)]
"""A pattern for names of modules or weights."""
FolderName = Annotated[Name, AfterValidator(_folder_name)]
FilePath = Annotated[Path, BeforeValidator(_not_empty), AfterValidator(_file_path)]


def fault_of(value: object, depth: int = 0) -> str | None:
    """Return why a value, or one inside it, is invalid in any configuration; None where it is well-formed."""
    if isinstance(value, str):
        return _fault_of_text(value)
    if isinstance(value, float):
        return None if math.isfinite(value) and abs(value) <= _NUMBER else f"must be finite and at most {_NUMBER:g}"
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**63 else "must be a 64-bit integer"
    if isinstance(value, Mapping):
        members = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        members = [*value]
    else:
        return None
    if depth >= _DEPTH:
        return f"must not be nested more than {_DEPTH} levels deep"
    return next(filter(None, (fault_of(member, depth + 1) for member in members)), None)


def takes_numbers_only(annotation: Any) -> bool:
    """Return whether a field takes numbers and no switch, so that `true` is not read as 1."""
    members = typing.get_args(annotation)
    if typing.get_origin(annotation) is Annotated:
        return takes_numbers_only(members[0])
    if not members:
        return annotation in (int, float)
    rest = [member for member in members if member is not type(None)]
    union = typing.get_origin(annotation) is not tuple
    return union and all(takes_numbers_only(member) for member in rest)


def _fault_of_text(text: str) -> str | None:
    if "\0" in text:
        return "must not contain a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "must be valid Unicode (it has an unpaired surrogate, or bytes that are not UTF-8)"
    return None

"""Files of a job's folder, validated; a damaged file counts as missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from swift.errors import SwiftError
from swift.untrusted import read_bytes

_LARGEST = 1 << 20
"""Maximum size of a file in bytes."""
_Process = Annotated[int, Field(gt=0, lt=1 << 31)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class JobRecord(_Record):
    """The command: `job.json`."""

    argv: Annotated[list[str], Field(min_length=1)]
    kind: str
    run_folder: str | None
    requested: FiniteFloat


class StartRecord(_Record):
    """Processes of a command and its runner: `started.json`."""

    process: _Process
    began: FiniteFloat | None
    runner: _Process
    runner_began: FiniteFloat | None
    log_from: Annotated[int, Field(ge=0, lt=1 << 62)] = 0


class EndRecord(_Record):
    """How a command ended: `ended.json`."""

    code: Annotated[int, Field(gt=-(1 << 31), lt=1 << 31)]
    at: FiniteFloat
    out_of_memory: bool = False
    problem: str = ""


class StopRecord(_Record):
    """A request to stop a command: `stopping.json`."""

    at: FiniteFloat
    now: bool


class ChatFacts(_Record):
    """Port and abilities of a chat model: `facts.json`."""

    port: Annotated[int, Field(gt=0, lt=1 << 16)]
    name: str | None = None
    multi_turn: bool | None = None
    images: bool | None = None


T = TypeVar("T", bound=_Record)


def read_record(path: Path, kind: type[T]) -> T | None:
    """Return the content of a file; None if it is missing or invalid."""
    try:
        return kind.model_validate_json(read_bytes(path, SwiftError, limit=_LARGEST))
    except (SwiftError, ValidationError):
        return None

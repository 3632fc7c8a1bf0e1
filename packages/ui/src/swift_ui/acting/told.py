"""Files in the folder of a command that the page has started, each as it must be; a damaged one is taken for none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from swift.errors import SwiftError
from swift.untrusted import read_bytes

_LARGEST = 1 << 20
"""Bytes of such a file: what was typed is most of it."""
_Process = Annotated[int, Field(gt=0, lt=1 << 31)]


class _Told(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class JobTold(_Told):
    """The command that was asked for: `job.json`."""

    words: Annotated[list[str], Field(min_length=1)]
    kind: str
    run_folder: str | None
    asked: FiniteFloat


class StartTold(_Told):
    """Processes of a command and of its keeper: `started.json`."""

    process: _Process
    began: FiniteFloat | None
    keeper: _Process
    keeper_began: FiniteFloat | None
    log_from: Annotated[int, Field(ge=0, lt=1 << 62)] = 0


class EndTold(_Told):
    """How a command ended: `ended.json`."""

    code: Annotated[int, Field(gt=-(1 << 31), lt=1 << 31)]
    at: FiniteFloat
    out_of_memory: bool = False
    problem: str = ""


class StopTold(_Told):
    """That a command was told to end: `stopping.json`."""

    at: FiniteFloat
    now: bool


class FactsTold(_Told):
    """Facts that a model that answers the page tells of itself: `facts.json`."""

    port: Annotated[int, Field(gt=0, lt=1 << 16)]
    name: str | None = None
    multi_turn: bool | None = None
    images: bool | None = None


T = TypeVar("T", bound=_Told)


def told(path: Path, kind: type[T]) -> T | None:
    """Return what a file says; None where it is not there, or says something else."""
    try:
        return kind.model_validate_json(read_bytes(path, SwiftError, limit=_LARGEST))
    except (SwiftError, ValidationError):
        return None

"""Reads the fenced blocks of documentation pages: files to write, commands to run, and the output that is shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d[\d,.]*(?:e[-+]?\d+)?")
ANYTHING = "..."


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    language: str
    file: str | None
    """The file that a reader is told to save it as."""
    text: str


@dataclass
class Command:
    """A line after `$ `, what a reader types into it, and the output that the page shows."""

    line: str
    typed: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def words(self) -> list[str]:
        """As a shell takes it apart."""
        return shlex.split(self.line)


def blocks(page: Path) -> list[Block]:
    """In the order of the page."""
    return [Block(*found.groups()) for found in _FENCE.finditer(page.read_text(encoding="utf-8"))]


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block; a `\\` at the end of a line goes on in the next."""
    command = None
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command
            command = Command(line.removeprefix("$ "))
        elif command is not None and line.startswith("> "):
            command.typed.append(line.removeprefix("> "))
        elif command is not None:
            command.shown.append(line)
    if command is not None:
        yield command


def missing(shown: list[str], printed: str) -> list[str]:
    """Lines that a page shows and a command did not print, in their order. `...` stands for anything; so does any
    number for any other, and any run of spaces: columns are as wide as what is installed."""
    rest = iter(_without_numbers(printed).splitlines())
    wanted = [line for line in shown if line.strip() and line.strip() != ANYTHING]
    return [line for line in wanted if not any(_pattern(line).fullmatch(found) for found in rest)]


def _pattern(line: str) -> re.Pattern[str]:
    parts = (re.escape(_without_numbers(part.strip())) for part in line.split(ANYTHING))
    return re.compile(r"\s*" + r".*".join(parts) + r"\s*")


def _without_numbers(text: str) -> str:
    return _NUMBER.sub("0", re.sub(r"[ \t]+", " ", text))

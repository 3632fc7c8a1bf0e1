"""Read the fenced blocks of documentation pages: files to write, commands to run, and the expected output."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
CHINESE = DOCS / "zh"
ENGLISH = [page for page in sorted(DOCS.rglob("*.md")) if not page.is_relative_to(CHINESE)]

_FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d[\d,.]*(?:e[-+]?\d+)?")
_MEASURED = re.compile(r"\s*(?:tok/s|tokens/s|ms|s|[KMG]i?B)\b")
"""Units of figures that differ between runs."""
ANYTHING = "..."
TOLERANCE = 0.05
"""Relative tolerance of figures with a decimal point, since processors round differently."""


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    language: str
    file: str | None
    """The file to save it as."""
    text: str


@dataclass
class Command:
    """A line after `$ `, the input for it, and the expected output."""

    line: str
    typed: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def words(self) -> list[str]:
        """Return the arguments, split as by a shell."""
        return shlex.split(self.line)


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks in the order of the page."""
    return [Block(*found.groups()) for found in _FENCE.finditer(page.read_text(encoding="utf-8"))]


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a console block; a `\\` at the end of a line continues it."""
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
    """Return the lines of a page that a command did not print, in their order.

    `...` matches anything, and runs of spaces match each other, since column widths vary. Whole numbers must be equal,
    others within `TOLERANCE`; times, speeds and sizes in bytes can have any value.
    """
    rest = iter(_narrow(printed).splitlines())
    wanted = [line for line in shown if line.strip() and line.strip() != ANYTHING]
    return [line for line in wanted if not any(_shows(line, found) for found in rest)]


def _shows(line: str, printed: str) -> bool:
    parts = [_narrow(part.strip()) for part in line.split(ANYTHING)]
    found = re.fullmatch(r"\s*" + r".*".join(map(_pattern, parts)) + r"\s*", printed)
    figures = [each for part in parts for each in _NUMBER.finditer(part)]
    return found is not None and all(
        _MEASURED.match(shown.string, shown.end()) or _close(shown[0], figure)
        for shown, figure in zip(figures, found.groups(), strict=True)
    )


def _pattern(part: str) -> str:
    """Return a pattern for the text, with a group for each figure."""
    return rf"(?<![\d.,])({_NUMBER.pattern})".join(map(re.escape, _NUMBER.split(part)))


def _close(shown: str, printed: str) -> bool:
    shown, printed = (text.rstrip(".,").replace(",", "") for text in (shown, printed))
    if shown == printed or (shown.isdigit() and printed.isdigit()):
        return shown == printed
    try:
        return math.isclose(float(shown), float(printed), rel_tol=TOLERANCE)
    except ValueError:  # a version, or an address
        return False


def _narrow(text: str) -> str:
    return re.sub(r"[ \t]+", " ", text)

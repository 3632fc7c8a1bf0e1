"""Make notebooks of the tutorials, whose commands and outputs a test checks: `make docs`.

A file of a page becomes a cell that writes it, and a command a cell with its output. Tutorials that start a server are
left out: they need several terminals.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "docs" / "tutorial"
NOTEBOOKS = ROOT / "examples" / "notebooks"

sys.path.insert(0, str(ROOT / "tests" / "docs"))
from pages import Block, Command, blocks, commands  # type: ignore[import-not-found]  # noqa: E402 - the tests' reader

_FENCE = re.compile(r"^```.*?^```\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def notebooks() -> dict[str, str]:
    """Return the notebooks by name."""
    found = {}
    for page in sorted(TUTORIALS.glob("*.md")):
        shown = [command for block in blocks(page) for command in _commands(block)]
        if not any(command.line.startswith("swift serve") for command in shown):
            found[f"{page.stem}.ipynb"] = notebook(page)
    return found


def notebook(page: Path) -> str:
    """Return the notebook of a page as JSON."""
    cells = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(_cells(page))]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _cells(page: Path) -> Iterator[dict[str, Any]]:
    text = page.read_text(encoding="utf-8")
    fenced = iter(zip(_FENCE.findall(text), blocks(page), strict=True))
    for part in re.split(f"({_FENCE.pattern})", text, flags=_FENCE.flags):
        if not part.startswith("```"):
            if part.strip():
                yield _markdown(_LINK.sub(lambda link: f"]({_moved(link[1], page)}{link[2] or ''})", part))
            continue
        source, block = next(fenced)
        if block.file:
            yield _code(f"%%writefile {block.file}\n{block.text}")
        elif block.language == "console":
            yield from (_command(each) for each in commands(block))
        else:
            yield _markdown(source)


def _commands(block: Block) -> list[Command]:
    return list(commands(block)) if block.language == "console" else []


def _moved(target: str, page: Path) -> str:
    return os.path.relpath(page.parent / target, NOTEBOOKS)


def _command(command: Command) -> dict[str, Any]:
    """Return the cell of a command; bash expands no braces and variables of Python, unlike `!`."""
    line = command.line
    if command.typed:
        line = "\n".join([f"{line} << 'END'", *command.typed, "END"])
    output = [{"name": "stdout", "output_type": "stream", "text": _lines("\n".join(command.shown) + "\n")}]
    return {**_code(f"%%bash\n{line}"), "outputs": output if command.shown else []}


def _markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": _lines(text.strip())}


def _code(text: str) -> dict[str, Any]:
    source = _lines(text.rstrip())
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)

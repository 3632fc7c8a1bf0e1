"""Rounds of a run that learns from its own answers: prompts, answers, rewards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from swift.untrusted import open_regular
from swift_ui.looking.lines import parsed
from swift_ui.looking.missing import NotThere, file_in

FOLDER = "rollouts"
MOST_LINES = 400
MOST_BYTES = 8 << 20
_ROUND = re.compile(r"round-(\d{1,9})\.jsonl")


def rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run, and which of them has a page to read."""
    found = []
    for path in folder.glob(f"{FOLDER}/round-*.jsonl"):
        match = _ROUND.fullmatch(path.name)
        if match and path.is_file():
            page = path.with_suffix(".html")
            found.append({"number": int(match[1]), "page": f"{FOLDER}/{page.name}" if page.is_file() else None})
    return sorted(found, key=lambda each: each["number"])


def answers(folder: Path, number: int) -> dict[str, Any]:
    """Return the prompts and answers of a round, of a large one the first."""
    path = file_in(folder, f"{FOLDER}/round-{number:06d}.jsonl")
    with open_regular(path, NotThere) as file:
        text = file.read(MOST_BYTES)
    lines = parsed(text)
    return {"lines": lines[:MOST_LINES], "more": max(0, len(lines) - MOST_LINES)}

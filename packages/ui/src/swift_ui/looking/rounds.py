"""Rounds of an online run: prompts, completions, rewards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from swift.untrusted import open_regular
from swift_ui.looking.index import NotFound, file_in
from swift_ui.looking.lines import parsed

FOLDER = "rollouts"
MOST_COMPLETIONS = 400
MOST_BYTES = 8 << 20
_SENT = ("text", "reward", "rewards", "remarks", "failed", "finish_reason", "why_not")
_ROUND = re.compile(r"round-(\d{1,9})\.jsonl")


def rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run, and their audit pages."""
    found = []
    for path in folder.glob(f"{FOLDER}/round-*.jsonl"):
        match = _ROUND.fullmatch(path.name)
        if match and path.is_file():
            page = path.with_suffix(".html")
            found.append({"number": int(match[1]), "page": f"{FOLDER}/{page.name}" if page.is_file() else None})
    return sorted(found, key=lambda each: each["number"])


def completions(folder: Path, number: int) -> dict[str, Any]:
    """Return the prompts of a round with their completions, up to `MOST_COMPLETIONS`."""
    path = file_in(folder, f"{FOLDER}/round-{number:06d}.jsonl")
    with open_regular(path, NotFound) as file:
        lines = parsed(file.read(MOST_BYTES))
    head, rows = (lines[0], lines[1:]) if lines else ({}, [])
    dropped = head["dropped"] if isinstance(head.get("dropped"), dict) else {}
    prompts = head.get("prompts")
    items = [each for each in prompts if isinstance(each, dict)] if isinstance(prompts, list) else []
    groups: list[dict[str, Any]] = [
        {
            "source": each.get("source"),
            "messages": each.get("messages"),
            "dropped": dropped.get(str(index)),
            "completions": [],
        }
        for index, each in enumerate(items)
    ]
    for line in rows[:MOST_COMPLETIONS]:
        index = line.get("prompt")
        if isinstance(index, int) and 0 <= index < len(groups):
            groups[index]["completions"].append({name: line.get(name) for name in _SENT})
    return {
        "facts": head.get("facts") or {},
        "version": head.get("version"),
        "groups": [group for group in groups if group["completions"]],
        "more": max(0, len(rows) - MOST_COMPLETIONS),
    }

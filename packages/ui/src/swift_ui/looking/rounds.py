"""Rounds of a run that learns from its own answers: prompts, answers, rewards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from swift.untrusted import open_regular
from swift_ui.looking.lines import parsed
from swift_ui.looking.missing import NotThere, file_in

FOLDER = "rollouts"
MOST_ANSWERS = 400
MOST_BYTES = 8 << 20
_TOLD = ("text", "reward", "rewards", "remarks", "failed", "finish_reason", "why_not")
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
    """Return the prompts of a round, each with its answers; of a large round the first."""
    path = file_in(folder, f"{FOLDER}/round-{number:06d}.jsonl")
    with open_regular(path, NotThere) as file:
        lines = parsed(file.read(MOST_BYTES))
    head, told = (lines[0], lines[1:]) if lines else ({}, [])
    dropped = head["dropped"] if isinstance(head.get("dropped"), dict) else {}
    prompts = head.get("prompts")
    asked = [each for each in prompts if isinstance(each, dict)] if isinstance(prompts, list) else []
    groups: list[dict[str, Any]] = [
        {
            "place": each.get("source"),
            "messages": each.get("messages"),
            "dropped": dropped.get(str(index)),
            "answers": [],
        }
        for index, each in enumerate(asked)
    ]
    for line in told[:MOST_ANSWERS]:
        index = line.get("prompt")
        if isinstance(index, int) and 0 <= index < len(groups):
            groups[index]["answers"].append({name: line.get(name) for name in _TOLD})
    return {
        "facts": head.get("facts") or {},
        "version": head.get("version"),
        "groups": [group for group in groups if group["answers"]],
        "more": max(0, len(told) - MOST_ANSWERS),
    }

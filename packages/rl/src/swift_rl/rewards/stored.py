"""Answers that are stored in a file of JSON lines: a round of a run, rows of a data set, or rewards that failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.contracts import RewardItem
from swift.errors import DataError

_PROMPTS = ("prompt", "query", "question", "instruction")
_ANSWERS = ("completion", "response", "answer", "output", "text")
_KNOWN = ("messages", "completion_ids", "finish_reason")


def read_answers(file: Path) -> list[RewardItem]:
    """Return the answers of a file; raise `DataError` where a line holds none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{file} cannot be read: {problem}", hint="Name a file of JSON lines.") from None
    rows = [_row(line, f"{file}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise DataError(f"{file} holds no answers.", hint="Each line is a row: messages, and the completion.")
    if "round" in rows[0] and "prompts" in rows[0]:
        return _of_a_round(file, rows[0], rows[1:])
    return [_item(row, f"{file}, line {number}") for number, row in enumerate(rows, 1)]


def _row(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as problem:
        raise DataError(f"{place}: this is no JSON ({problem}).", hint="Each line is one JSON object.") from None
    if not isinstance(row, dict):
        raise DataError(f"{place}: this is no JSON object.", hint="Each line is one JSON object.")
    return row


def _item(row: Mapping[str, Any], place: str) -> RewardItem:
    messages = row.get("messages")
    if not isinstance(messages, list):
        asked = next((row[name] for name in _PROMPTS if isinstance(row.get(name), str)), None)
        messages = [] if asked is None else [{"role": "user", "content": asked}]
    answer = next((name for name in _ANSWERS if isinstance(row.get(name), str)), None)
    if answer is not None:
        completion, used = row[answer], {*_KNOWN, *_PROMPTS, answer}
    elif messages and isinstance(messages[-1], dict) and messages[-1].get("role") == "assistant":
        completion, messages, used = str(messages[-1].get("content")), messages[:-1], {*_KNOWN, *_PROMPTS}
    else:
        raise DataError(
            f"{place}: there is no answer.",
            hint=f"A row has messages that end with the assistant's, or one of {', '.join(_ANSWERS)}.",
        )
    return RewardItem(
        messages,
        completion,
        completion_ids=row.get("completion_ids") or (),
        finish_reason=str(row.get("finish_reason", "stop")),
        columns={name: value for name, value in row.items() if name not in used},
        place=place,
    )


def _of_a_round(file: Path, head: Mapping[str, Any], answers: list[dict[str, Any]]) -> list[RewardItem]:
    """Return the answers of a round, with their tokens where the file beside it is there."""
    from swift_rl.rounds.data import Episode

    items = []
    for number, (answer, ids) in enumerate(zip(answers, _tokens(file, len(answers)), strict=True), 1):
        prompt = head["prompts"][answer["prompt"]]
        messages, columns = prompt["messages"], prompt["columns"]
        if answer.get("episode"):
            episode = Episode(**answer["episode"])
            messages, columns = episode.messages[:-1], episode.seen_by_rewards(columns)
        items.append(RewardItem(messages, answer["text"], ids, answer["finish_reason"], columns, f"answer {number}"))
    return items


def _tokens(file: Path, count: int) -> list[list[int]]:
    """Return the tokens of a round's answers, which stand in the safetensors file of the same name; none without it."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(file.with_suffix(".safetensors"))
        ends = np.cumsum(arrays["lengths"])[:-1]
        tokens = [part.tolist() for part in np.split(arrays["token_ids"], ends)]
    except (OSError, SafetensorError, LookupError, ValueError):
        return [[] for _ in range(count)]
    return tokens if len(tokens) == count else [[] for _ in range(count)]

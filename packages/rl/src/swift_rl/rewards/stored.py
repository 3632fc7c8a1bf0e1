"""Completions that are stored in a file of JSON lines: a round of a run, rows of a data set, or rewards that failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.contracts import RewardItem
from swift.errors import DataError
from swift.untrusted import DEPTH, check_regular, check_unicode, is_deeper, json_kind, read_text

_PROMPTS = ("prompt", "query", "question", "instruction")
_COMPLETIONS = ("completion", "response", "answer", "output", "text")
_MESSAGE = 'For example {"role": "user", "content": "Hello"}.'
_KNOWN = ("messages", "completion_ids", "finish_reason")


_LARGEST = 1 << 30
"""Bytes that a file of completions may have: a round of 1,000 completions of 10,000 tokens takes a twentieth."""


def read_completions(file: Path) -> list[RewardItem]:
    """Return the completions of a file; raise `DataError` where a line holds none."""
    # Not splitlines: texts may hold other separators of lines as they are.
    lines = read_text(file, DataError, limit=_LARGEST).split("\n")
    rows = [(f"{file}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise DataError(f"{file} holds no completions.", hint="Each line is a row: messages, and the completion.")
    parsed = [(source, _row(line, source)) for source, line in rows]
    head = parsed[0][1]
    if "round" in head and "prompts" in head:
        return _of_a_round(file, head, parsed[1:])
    return [_item(row, source) for source, row in parsed]


def _row(line: str, source: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{source}: invalid JSON ({problem}).", hint="Each line is one JSON object.") from None
    if is_deeper(row, DEPTH):
        raise DataError(f"{source}: the JSON is nested more than {DEPTH} levels deep.")
    if not isinstance(row, dict):
        raise DataError(
            f"{source}: expected a JSON object, not {json_kind(row)}.", hint="Each line is one JSON object."
        )
    if "\\u" in line:  # how JSON writes an unpaired surrogate
        check_unicode(json.dumps(row, ensure_ascii=False), source, DataError)
    return row


def _item(row: Mapping[str, Any], source: str) -> RewardItem:
    messages = row.get("messages")
    if not isinstance(messages, list):
        question = next((row[name] for name in _PROMPTS if isinstance(row.get(name), str)), None)
        messages = [] if question is None else [{"role": "user", "content": question}]
    _check_messages(messages, source)
    completion = next((name for name in _COMPLETIONS if isinstance(row.get(name), str)), None)
    if completion is not None:
        completion, used = row[completion], {*_KNOWN, *_PROMPTS, completion}
    elif messages and messages[-1].get("role") == "assistant" and isinstance(messages[-1].get("content"), str):
        completion, messages, used = messages[-1]["content"], messages[:-1], {*_KNOWN, *_PROMPTS}
    else:
        raise DataError(
            f"{source}: the row has no completion.",
            hint=f"A row has messages that end with the assistant's, or one of {', '.join(_COMPLETIONS)}.",
        )
    return RewardItem(
        messages,
        completion,
        completion_ids=_ids(row.get("completion_ids") or [], source),
        finish_reason=str(row.get("finish_reason", "stop")),
        columns={name: value for name, value in row.items() if name not in used},
        source=source,
    )


def _check_messages(messages: object, source: str) -> None:
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise DataError(f"{source}: messages must be a list of objects.", hint=_MESSAGE)
    for each in messages:
        if not isinstance(each.get("role"), str) or "content" not in each:
            raise DataError(f"{source}: each message needs a role and content.", hint=_MESSAGE)


def _ids(ids: object, source: str) -> list[int]:
    if not isinstance(ids, list) or not all(type(each) is int and 0 <= each < 1 << 31 for each in ids):
        raise DataError(f"{source}: completion_ids must be a list of token ids (whole numbers from 0).")
    return ids


def _of_a_round(file: Path, head: Mapping[str, Any], completions: list[tuple[str, dict[str, Any]]]) -> list[RewardItem]:
    """Return the completions of a round, with their tokens where the safetensors file exists."""
    from swift_rl.rounds.data import Episode

    items = []
    for number, ((source, completion), ids) in enumerate(
        zip(completions, _tokens(file, len(completions)), strict=True), 1
    ):
        try:
            prompt = head["prompts"][completion["prompt"]]
            messages, columns = prompt["messages"], dict(prompt["columns"])
            if completion.get("episode"):
                episode = Episode(**completion["episode"])
                messages, columns = episode.messages[:-1], episode.seen_by_rewards(columns)
            text, reason = completion["text"], completion["finish_reason"]
        except (LookupError, TypeError, ValueError, AttributeError) as problem:
            raise _no_round(source, repr(problem)) from None
        if not isinstance(text, str) or not isinstance(reason, str):
            raise _no_round(source, "text and finish_reason must be strings")
        _check_messages(messages, source)
        items.append(RewardItem(messages, text, ids, reason, columns, f"completion {number}"))
    return items


def _no_round(source: str, why: str) -> DataError:
    return DataError(
        f"{source}: invalid row of rollouts: {why}.",
        hint="Pass rollouts/round-NNNNNN.jsonl of a run. Rows of your own must not begin with 'round' and 'prompts'.",
    )


def _tokens(file: Path, count: int) -> list[list[int]]:
    """Return the tokens of a round's completions from the safetensors file of the same name; empty without it."""
    import numpy as np
    from safetensors import SafetensorError, safe_open

    tensors = file.with_suffix(".safetensors")
    try:
        check_regular(tensors, DataError)
        with safe_open(tensors, framework="numpy") as arrays:
            lengths, ids = arrays.get_tensor("lengths"), arrays.get_tensor("token_ids")
        if (lengths < 0).any() or int(lengths.sum()) != len(ids):
            raise ValueError("not the tokens of these completions")
        tokens = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    except (DataError, OSError, MemoryError, SafetensorError, LookupError, ValueError, TypeError):
        return [[] for _ in range(count)]
    return tokens if len(tokens) == count else [[] for _ in range(count)]

"""Questions from a data set: with the answers that are expected, where it has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from swift.config.sections import DataSection
from swift.data.conversation import Unusable
from swift.data.corpus import Part, open_parts
from swift.data.formats import MESSAGES, QUESTION, rename
from swift.errors import DataError


@dataclass(frozen=True)
class Question:
    """What the model is asked, and what the data set says to it."""

    messages: list[dict[str, Any]]
    expected: str | None = None
    tools: Sequence[Any] = ()
    row: dict[str, Any] = field(default_factory=dict)
    """As it was read."""
    place: str = ""


def read_questions(names: Sequence[str], columns: dict[str, str], *, system: str | None = None) -> list[Question]:
    """One question per row. The last answer of the assistant is what is expected; rows may also end unanswered."""
    section = DataSection(train=tuple(names), columns=columns, system=system)
    parts = open_parts(section.train, section)
    return [_question(part, index, system) for part in parts for index in range(part.count)]


def _question(part: Part, index: int, system: str | None) -> Question:
    row, place = part.rows[index], part.rows.place(index)
    try:
        conversation = part.understand(row, "chat", place).conversation
    except Unusable as unusable:
        messages = _unanswered(rename(row, part.columns, place))
        if messages is None:
            raise DataError(f"{place}: {unusable.reason}: {unusable.detail}.", hint="Mend the row.") from None
        return Question(_with_system(messages, system), row=dict(row), place=place)
    messages = list(conversation.messages)
    expected = str(messages.pop()["content"])
    return Question(_with_system(messages, system), expected, conversation.tools, dict(row), place)


def _unanswered(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The messages of a row that ends with a question."""
    for name in MESSAGES:
        messages = row.get(name)
        if isinstance(messages, list) and messages and messages[-1].get("role") == "user":
            return messages
    for name in QUESTION:
        question = row.get(name)
        if isinstance(question, str) and question.strip():
            following = row.get("input") if name == "instruction" else None
            messages = [{"role": "user", "content": f"{question}\n{following}" if following else question}]
            return _with_system(messages, row.get("system"))
    return None


def _with_system(messages: list[dict[str, Any]], system: str | None) -> list[dict[str, Any]]:
    if system and messages[0]["role"] != "system":
        return [{"role": "system", "content": system}, *messages]
    return messages

"""Questions from a data set: with the answers that are expected, where it has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swift.config.sections import DataSection
from swift.data.conversation import Unusable
from swift.data.corpus import Part, open_parts
from swift.data.formats import ANSWER, MESSAGES, QUESTION, SYSTEM, rename
from swift.errors import DataError

_CONVERSATION = frozenset({*MESSAGES, *QUESTION, *ANSWER, *SYSTEM, "input", "history", "tools", "text"})
"""Columns that are part of the question or of what is expected."""


@dataclass(frozen=True)
class Question:
    """What the model is asked, and what the data set says to it."""

    messages: list[dict[str, Any]]
    expected: str | None = None
    tools: Sequence[Any] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Columns of the row that no format uses."""
    place: str = ""


class Questions:
    """One question per row of some data sets. Rows are understood when they are asked for, and not kept."""

    def __init__(self, parts: Sequence[Part], system: str | None) -> None:
        self._parts = parts
        self._system = system

    def __len__(self) -> int:
        return sum(part.count for part in self._parts)

    def __getitem__(self, index: int) -> Question:
        for part in self._parts:
            if index < part.count:
                return _question(part, index, self._system)
            index -= part.count
        raise IndexError(index)

    def __iter__(self) -> Iterator[Question]:
        return (self[index] for index in range(len(self)))


def read_questions(names: Sequence[str], columns: dict[str, str], *, system: str | None = None) -> Questions:
    """One question per row. The last answer of the assistant is what is expected; rows may also end unanswered."""
    section = DataSection(train=tuple(names), columns=columns, system=system)
    return Questions(open_parts(section.train, section), system)


def with_system(messages: Sequence[dict[str, Any]], system: str | None) -> list[dict[str, Any]]:
    """The messages, after this system message if they have none."""
    if system and messages[0]["role"] != "system":
        return [{"role": "system", "content": system}, *messages]
    return list(messages)


def _question(part: Part, index: int, system: str | None) -> Question:
    row, place = part.rows[index], part.rows.place(index)
    renamed = rename(row, part.columns, place)
    extras = {name: value for name, value in renamed.items() if name not in _CONVERSATION}
    try:
        conversation = part.understand(row, "chat", place).conversation
    except Unusable as unusable:
        messages = _unanswered(renamed)
        if messages is None:
            raise DataError(f"{place}: {unusable.reason}: {unusable.detail}.", hint="Mend the row.") from None
        return Question(with_system(messages, system), extras=extras, place=place)
    messages = list(conversation.messages)
    expected = str(messages.pop()["content"])
    return Question(with_system(messages, system), expected, conversation.tools, extras, place)


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
            return with_system(messages, row.get("system"))
    return None

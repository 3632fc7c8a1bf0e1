"""Questions from a data set, with the expected answers where it has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swift.config.sections import DataSection
from swift.data import DatasetPart, RoleTags, RowData, has_objects, open_parts
from swift.data.encodings import ChatEncoding, Conversation, RowReader, Sample, Unusable
from swift.data.formats import COMPLETION, MESSAGES, QUESTION, SYSTEM, rename
from swift.data.images import COLUMNS
from swift.errors import DataError
from swift.untrusted import is_unicode

_CONVERSATION = frozenset({*MESSAGES, *QUESTION, *COMPLETION, *SYSTEM, "input", "history", "tools", "text"}).union(
    *COLUMNS.values()
)
"""Columns that are part of the question or of the expected answer."""
_PROBE = "?"


class _QuestionEncoding(ChatEncoding):
    """Conversations, ignoring what a row declares about its loss."""

    def read(self, row: RowReader) -> Sample:
        """Return the conversation of the row."""
        return Sample(row.conversation())


_ENCODING = _QuestionEncoding()


@dataclass(frozen=True)
class Question:
    """A prompt for the model, with the expected answer if the data set has one."""

    messages: list[dict[str, Any]]
    expected: str | None = None
    tools: Sequence[Any] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Columns of the row that no format uses."""
    source: str = ""
    """File and line, for errors."""


class Questions(Sequence[Question]):
    """One question per row of some data sets; rows are parsed on access, and not kept."""

    def __init__(self, parts: Sequence[DatasetPart], system: str | None) -> None:
        self._parts = parts
        self._system = system

    def __len__(self) -> int:
        return sum(part.count for part in self._parts)

    def __getitem__(self, index: int) -> Question:  # type: ignore[override]  # no slices
        for part in self._parts:
            if index < part.count:
                return self.of(part, index)
            index -= part.count
        raise IndexError(index)

    def of(self, part: DatasetPart, index: int) -> Question:
        """Return one row of a data set."""
        row, source = part.rows[index], part.rows.location(index)
        renamed = read_row(part, index)
        extras = {name: value for name, value in renamed.items() if name not in _CONVERSATION}
        expected = None
        try:
            conversation = part.understand(row, _ENCODING, source).conversation
            expected = str(conversation.messages[-1]["content"])
        except Unusable as unusable:
            conversation = _open_conversation(part, renamed, source, unusable)
        messages = list(conversation.messages[:-1])
        if has_objects(conversation.messages):
            raise DataError(
                f"{source}: the column 'objects' is supported in training only.",
                hint="Write names and bounding boxes into the messages, and remove the column.",
            )
        if not messages:
            raise DataError(
                f"{source}: the row has no question.", hint="Add a user message. To train on plain text: swift pt"
            )
        return Question(with_system(messages, self._system), expected, conversation.tools, extras, source)


def read_questions(names: Sequence[str], columns: dict[str, str], *, system: str | None = None) -> Questions:
    """Return one question per row, whose last assistant message, if any, is the expected answer."""
    section = DataSection(train=tuple(names), columns=columns, system=system)
    return Questions(open_parts(section.train, section), system)


def with_system(messages: Sequence[dict[str, Any]], system: str | None) -> list[dict[str, Any]]:
    """Return the messages, with this system message if they have none."""
    if system and messages[0]["role"] != "system":
        return [{"role": "system", "content": system}, *messages]
    return list(messages)


def read_row(part: DatasetPart, index: int) -> RowData:
    """Return one row with its columns renamed; raise `DataError` if it is not valid Unicode, so cannot be written."""
    source = part.rows.location(index)
    renamed = rename(part.rows[index], part.columns, source)
    if not is_unicode(json.dumps(renamed, ensure_ascii=False, default=repr)):
        raise DataError(
            f"{source}: the row has an unpaired surrogate, which is not valid Unicode.", hint="Fix the row."
        )
    return renamed


def _open_conversation(part: DatasetPart, row: RowData, source: str, unusable: Unusable) -> Conversation:
    """Return the conversation of a row that ends with a question, parsed with a dummy answer."""
    for name in MESSAGES:
        messages = row.get(name)
        if isinstance(messages, list) and messages and _role(messages[-1], part.tags) == "user":
            dummy = {part.tags.role_keys[0]: "assistant", part.tags.content_keys[0]: _PROBE}
            row = {**row, name: [*messages, dummy]}
            break
    else:
        if any(name in row for name in (*MESSAGES, *COMPLETION)) or not any(name in row for name in QUESTION):
            raise _invalid(unusable, source)
        row = {**row, COMPLETION[0]: _PROBE}
    try:
        return _ENCODING.understand(row, source, part.tags, part.root).conversation
    except Unusable as still:
        raise _invalid(still, source) from None


def _role(message: object, tags: RoleTags) -> str | None:
    role = next((message[key] for key in tags.role_keys if key in message), None) if isinstance(message, dict) else None
    return tags.roles.get(role) if isinstance(role, str) else None


def _invalid(unusable: Unusable, source: str) -> DataError:
    return DataError(f"{source}: {unusable.reason}: {unusable.detail}.", hint="Fix the row.")

"""Formats of rows: which columns mean what, and how a row becomes conversations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from swift.config.media import NAMES
from swift.data import images
from swift.data.bounding_boxes import COLUMN, boxed
from swift.data.conversation import (
    Conversation,
    RoleTags,
    Unusable,
    checked_text,
    parse_json,
    parse_json_list,
    raw_text,
    read_content,
    read_messages,
    read_weight,
    take_weight,
)
from swift.data.media import Medium
from swift.data.placing import placed
from swift.data.sources.rows import RowData
from swift.errors import DataError, did_you_mean
from swift.untrusted import json_kind

MESSAGES = ("messages", "conversations", "conversation")
QUESTION = ("instruction", "query", "prompt", "question")
COMPLETION = ("output", "response", "completion", "answer")
SYSTEM = ("system", "system_prompt")
WEIGHT = ("weight", "sample_weight", "loss_weight", "loss_scale")
"""Columns that multiply the loss of the whole sample."""
POSITIVE = ("positive", "positives", "pos")
"""Texts that belong to a query, and below those that don't."""
NEGATIVE = ("negative", "negatives", "neg")

UNDERSTOOD = (
    "messages (or conversations); instruction, input, output; query, response, history, system; "
    "prompt, completion; text. Preference: any of these with rejected_response or rejected_messages, or prompt, "
    "chosen, rejected. KTO: any of these with label"
)
UNKNOWN_FORMAT = "unknown format"
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class Sample:
    """A row that was read: what the encoding makes tokens of."""

    conversation: Conversation
    rejected: Conversation | None = None
    """The worse one of a pair; it shares the prompt."""
    others: tuple[Conversation, ...] = ()
    """Further texts of the row, for encodings whose samples have a varying number of segments: documents of a query."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Numbers by name, those that the encoding declares: 'label' of KTO (1.0 or 0.0), 'margin' of a pair."""
    weight: float = 1.0
    """Factor of the loss weight of every token."""
    format: str = ""
    """The name of the row's format, where rows of several formats are counted."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Columns that no format uses."""


def rename(row: RowData, columns: Mapping[str, str], location: str) -> RowData:
    """Return the row under our names, without empty columns; raises `DataError` where two columns have one name."""
    renamed: RowData = {}
    source: dict[str, str] = {}
    for column, value in row.items():
        if value is None:
            continue
        target = columns.get(column, column)
        if target in source:
            raise _collision(source[target], column, target, location)
        renamed[target], source[target] = value, column
    return renamed


def check_columns(columns: Mapping[str, str], rows: Sequence[RowData]) -> None:
    """Raise `DataError` where a column is renamed that none of these rows has."""
    present = list(dict.fromkeys(column for row in rows for column in row))
    for column in columns:
        if column not in present:
            raise DataError(
                f"data.columns renames {column!r}, but there is no such column.{did_you_mean(column, present)}",
                hint=f"The columns are: {', '.join(present)}.",
            )


class RowReader:
    """Reads one renamed row and remembers which columns were used.

    Every method raises `Unusable` where the row cannot be used, and `DataError` where two columns claim one meaning.
    """

    def __init__(self, row: RowData, location: str, tags: RoleTags, root: Path | None = None) -> None:
        self.used: set[str] = set()
        """Columns that were read; a report names the others."""
        self.location = location
        """The file and line of the row."""
        self._row = row
        self._tags = tags
        self._root = root
        """The folder that paths of images are taken from."""

    def conversation(self) -> Conversation:
        """Return the conversation of the row, in whichever format it is."""
        if (messages := self.take(MESSAGES)) is not None:
            return self.messages(messages)
        if self.has(*QUESTION) and self.has(*COMPLETION):
            return self._question_and_completion()
        if "text" in self._row:
            for kind, columns in images.COLUMNS.items():
                if self.has(*columns):
                    raise Unusable(
                        f"holds {NAMES[kind]}s", f"a text by itself has no position for {NAMES[kind]}s: write messages"
                    )
            return raw_text(self.text("text"))
        raise self.unknown("no known columns")

    def plain_text(self) -> Conversation | None:
        """Return a text that stands by itself, with the row's images in it; None where the row is something else.

        That is the column `text` next to columns of media, and, as ms-swift writes it, one message of the assistant.
        """
        if not self.has(*MESSAGES):
            if "text" not in self._row or not any(self.has(*columns) for columns in images.COLUMNS.values()):
                return None
            return self._with_media(raw_text(self.text("text")))
        messages = next(self._row[name] for name in MESSAGES if name in self._row)
        messages = parse_json_list(messages, "messages")
        if not isinstance(messages, list | tuple) or len(messages) != 1 or not isinstance(messages[0], Mapping):
            return None
        role, content = (
            next((messages[0][key] for key in keys if key in messages[0]), None)
            for keys in (self._tags.role_keys, self._tags.content_keys)
        )
        if not isinstance(role, str) or self._tags.roles.get(role) != "assistant":
            return None
        self.take(MESSAGES)
        weight = take_weight({key: each for key, each in messages[0].items() if each is not None}, "assistant", 0)
        message = {"role": "assistant", "content": self.content(content)}
        return self._with_media(checked_text(Conversation((message,), (weight,), plain=True)))

    def weight(self) -> float:
        """Return the factor of the whole sample's loss; 1 where the row has none."""
        value = self.take(WEIGHT)
        return 1.0 if value is None else read_weight(value, "the weight of the row", "malformed weight")

    def refuse_rejected(self) -> None:
        """Refuse a completion that KTO's column 'label' marks as rejected; a label that is no boolean is left alone."""
        label = self._row.get("label")
        truth = _BOOLEANS.get(label.strip().lower()) if isinstance(label, str) else label
        if not isinstance(truth, bool):
            return
        self.used.add("label")
        if not truth:
            raise Unusable(
                "a rejected completion",
                "the column 'label' is false, which marks completions that KTO learns to avoid; type swift rlhf "
                '--rlhf_type kto, or --columns \'{"label": "unused"}\' where it means something else',
            )

    def format(self) -> str:
        """Return the name of the row's format, for the count of rows of each."""
        otherwise = "question and answer" if self.has(*QUESTION) and self.has(*COMPLETION) else "text"
        name = "messages" if self.has(*MESSAGES) else otherwise
        more = [column for column in ("rejected_response", "rejected_messages", "label") if column in self._row]
        return " with ".join([name, *more[:1]])

    def prompt(self) -> Conversation:
        """Return the conversation up to its last prompt, without the completion."""
        messages = self.take(MESSAGES)
        if messages is None and (messages := self.question()) is None:
            raise self.unknown("no question")
        conversation = self.messages(messages, completed=False)
        if conversation.messages[-1]["role"] != "assistant":
            return conversation
        last_round = conversation.last_round
        if not last_round:
            raise Unusable("no prompt", "no message is the user's")
        messages, weights = conversation.messages[:last_round], conversation.weights[:last_round]
        return replace(conversation, messages=messages, weights=weights)

    def completed(self, prompt: Any, completion: object, tools: object = None, *, media: str = "") -> Conversation:
        """Return the prompt's messages and the completion: a string, a message, or the messages of a round.

        `media` is as in `messages`.
        """
        if not isinstance(prompt, list | tuple):
            raise Unusable("no messages", f"the question is {json_kind(prompt)}, not a list of messages")
        added: Sequence[Any]
        if isinstance(completion, str):
            added = [{self._tags.role_keys[0]: "assistant", self._tags.content_keys[0]: completion}]
        else:
            added = completion if isinstance(completion, list | tuple) else [completion]
        return self.messages([*prompt, *added], tools=tools, media=media)

    def messages(
        self, messages: object, tools: object = None, *, completed: bool = True, media: str = ""
    ) -> Conversation:
        """Return the conversation that a list of messages is, with the row's system message, tools and images.

        With `completed` the assistant must have the last word. `media` begins the names of columns of images, videos
        and sounds that are read instead of the usual ones where the row has them: 'rejected' for `rejected_images`.
        """
        if tools is None:
            tools = self._row.get("tools")
            self.used.add("tools")
        conversation = read_messages(
            messages, system=self._system(), tools=tools, tags=self._tags, completed=completed, medium_of=self._medium
        )
        return self._with_media(conversation, media)

    def content(self, content: object) -> str | list[dict[str, Any]]:
        """Return what a message says: a string, or parts where some of them are images."""
        return read_content(content, 0, self._medium)

    def with_media_in_turn(self, conversations: Sequence[Conversation]) -> list[Conversation]:
        """Return conversations that share the row's images, videos and audio: each takes after the one before.

        One that names its own takes none.
        """
        joined = [message for each in conversations if not each.media for message in each.messages]
        whole = self._with_media(Conversation(tuple(joined), (1.0,) * len(joined)))
        messages = iter(whole.messages)
        return [
            placed(each, {}) if each.media else replace(each, messages=tuple(next(messages) for _ in each.messages))
            for each in conversations
        ]

    def media_of_sequences(
        self, name: str, count: int
    ) -> Callable[[Sequence[Conversation]], list[Conversation]] | None:
        """Return what puts media into texts that have columns of their own, `positive_images` for `positive`.

        Such a column has a list for each text, of which there are `count`. None where the row has no such column.
        """
        held: list[dict[str, list[Medium]]] = [{} for _ in range(count)]
        found = False
        for kind, names in images.COLUMNS.items():
            value = self.take(tuple(f"{name}_{each}" for each in names))
            if value is None:
                continue
            found = True
            value = parse_json_list(value, f"the column of {NAMES[kind]}s")
            if not isinstance(value, list | tuple) or not all(isinstance(each, list | tuple) for each in value):
                value = [value]  # all of them are one text's
            if len(value) != count:
                raise Unusable(
                    f"{NAMES[kind]}s do not match",
                    f"{name}_{kind}s has {len(value)} lists, and there are {count} documents",
                )
            for text, listed in zip(held, value, strict=True):
                text[kind] = images.read_media(listed, self._root, kind)
        if not found:
            return None
        return lambda conversations: [placed(each, media) for each, media in zip(conversations, held, strict=True)]

    def _question_and_completion(self) -> Conversation:
        plain = "prompt" in self._row and "completion" in self._row and "tools" not in self._row
        question, completion = self.take(QUESTION), self.take(COMPLETION)
        if isinstance(question, list | tuple) or isinstance(completion, list | tuple):
            start = [{"role": "user", "content": question}] if isinstance(question, str) else question
            return self.completed(start, completion)
        question, completion = self.with_input(question), self._checked_text("completion", completion)
        conversation = self.completed(self.history(question), completion)
        return replace(conversation, plain=plain and len(conversation.messages) == 2 and not conversation.media)

    def _medium(self, part: Mapping[str, Any], kind: str) -> Medium | None:
        return images.medium_of_part(part, self._root, kind)

    def _with_media(self, conversation: Conversation, whose: str = "") -> Conversation:
        """Return the conversation with what the row's columns of media hold, and with its objects.

        Columns whose names begin with `whose` come before the usual. Objects of a row without images are ignored.
        """
        found: dict[str, list[Medium]] = {}
        for kind, names in images.COLUMNS.items():
            own = tuple(f"{whose}_{name}" for name in names)
            value = self.take(own if self.has(*own) else names)
            if value is not None:
                found[kind] = images.read_media(value, self._root, kind)
        conversation = placed(conversation, found)
        if COLUMN not in self._row or not any(each.kind == "image" for each in conversation.media):
            return conversation
        return boxed(conversation, self.value(COLUMN))

    def question(self) -> Any:
        """Return the messages of a question column, or of its text with 'history' and 'input'; None without one."""
        question = self.take(QUESTION)
        if question is None or isinstance(question, list | tuple):
            return question
        return self.history(self.with_input(question))

    def history(self, question: str) -> list[dict[str, str]]:
        """Return the messages of the column 'history', and the question that follows them."""
        role, content = self._tags.role_keys[0], self._tags.content_keys[0]
        messages = []
        for earlier, completion in self._past():
            messages += [{role: "user", content: earlier}, {role: "assistant", content: completion}]
        return [*messages, {role: "user", content: question}]

    def _past(self) -> list[tuple[str, str]]:
        self.used.add("history")
        history = parse_json(self._row.get("history") or [], "the column 'history'")
        if not isinstance(history, list | tuple) or not all(
            isinstance(turn, list | tuple) and len(turn) == 2 for turn in history
        ):
            raise Unusable("malformed history", "the history is not a list of [question, response]")
        return [
            (self._checked_text("history", question), self._checked_text("history", completion))
            for question, completion in history
        ]

    def with_input(self, question: object) -> str:
        """Return the question with what the column 'input' adds to it."""
        text = self._checked_text("question", question)
        if "input" not in self._row:
            return text
        more = self.text("input")
        return "\n".join(part for part in (text, more) if part)

    def _system(self) -> str | None:
        system = self.take(SYSTEM)
        return None if system is None else self._checked_text("system message", system)

    def value(self, column: str) -> Any:
        """Return what is in a column, or raises `Unusable` where there is no such column."""
        if column not in self._row:
            raise self.unknown(f"no column {column!r}")
        self.used.add(column)
        return self._row[column]

    def text(self, column: str) -> str:
        """Return the text in a column."""
        return self._checked_text(f"column {column!r}", self.value(column))

    def number(self, column: str) -> float:
        """Return the finite number in a column."""
        value = self.value(column)
        if (number := finite(value)) is None:
            raise Unusable(f"malformed {column}", f"the {column} is {value!r}, not a number")
        return number

    def _checked_text(self, what: str, value: object) -> str:
        if not isinstance(value, str):
            raise Unusable("not a string", f"the {what} is {json_kind(value)}, not a string")
        return value

    def has(self, *names: str) -> bool:
        """Return whether the row has any of these columns."""
        return any(name in self._row for name in names)

    def take(self, names: tuple[str, ...]) -> Any:
        """Return the value of the one column among these synonyms that the row has, or None."""
        present = [name for name in names if name in self._row]
        if len(present) > 1:
            raise _collision(present[0], present[1], names[0], self.location)
        self.used.update(present)
        return self._row[present[0]] if present else None

    def numbered(self, name: str) -> list[str]:
        """Return the columns `name_1`, `name_2` and so on, in the order of their numbers."""
        found = [column for column in self._row if column.startswith(f"{name}_")]
        numbers = {int(column[len(name) + 1 :]): column for column in found if column[len(name) + 1 :].isdecimal()}
        return [numbers[number] for number in sorted(numbers)]

    def unknown(self, what: str) -> Unusable:
        """Return the error of a row without the columns that the encoding reads."""
        return Unusable(UNKNOWN_FORMAT, f"{what}; the columns are {', '.join(self._row) or 'none'}")


def finite(value: Any) -> float | None:
    """Return a value as a number; None where it is none, or not finite."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _collision(one: str, other: str, target: str, location: str) -> DataError:
    return DataError(
        f"{location}: the columns {one!r} and {other!r} both mean {target!r}.",
        hint=f'Rename the one that is not meant: --columns \'{{"{other}": "unused"}}\'.',
    )

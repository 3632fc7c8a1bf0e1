"""Formats of rows: which columns mean what, and how a row becomes conversations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from swift.data.conversation import (
    Conversation,
    Unusable,
    checked,
    parse_json,
    raw_text,
    read_messages,
    rounds,
)
from swift.data.roles import STANDARD_TAGS, RoleTags
from swift.data.rows import RowData
from swift.errors import DataError, did_you_mean

MESSAGES = ("messages", "conversations", "conversation")
QUESTION = ("instruction", "query", "prompt", "question")
ANSWER = ("output", "response", "completion", "answer")
SYSTEM = ("system", "system_prompt")

UNDERSTOOD = (
    "messages (or conversations); instruction, input, output; query, response, history, system; "
    "prompt, completion; text. Preference: any of these with rejected_response or rejected_messages, or prompt, "
    "chosen, rejected. KTO: any of these with label"
)
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True)
class Sample:
    """A row, understood."""

    conversation: Conversation
    rejected: Conversation | None = None
    """The worse one of a pair; it shares the prompt."""
    values: Mapping[str, float] = field(default_factory=dict)
    """'label' of KTO (1.0 or 0.0), 'margin' of a pair."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Columns that no format uses."""


def rename(row: RowData, columns: Mapping[str, str], place: str) -> RowData:
    """The row under our names, without empty columns. Two columns for one name are an error."""
    renamed: RowData = {}
    source: dict[str, str] = {}
    for column, value in row.items():
        if value is None:
            continue
        target = columns.get(column, column)
        if target in source:
            raise _collision(source[target], column, target, place)
        renamed[target], source[target] = value, column
    return renamed


def check_columns(columns: Mapping[str, str], rows: Sequence[RowData]) -> None:
    """Refuses renamings of columns that none of these rows has."""
    present = list(dict.fromkeys(column for row in rows for column in row))
    for column in columns:
        if column not in present:
            raise DataError(
                f"data.columns renames {column!r}, but there is no such column.{did_you_mean(column, present)}",
                hint=f"The columns are: {', '.join(present)}.",
            )


def understand(row: RowData, encoding: str, place: str, tags: RoleTags = STANDARD_TAGS) -> Sample:
    """What a renamed row means under an encoding ('text', 'chat', 'preference' or 'unpaired').

    Raises `Unusable` when this row cannot be used, and `DataError` when two columns claim the same meaning.
    """
    reader = _Reader(row, place, tags)
    if encoding == "preference":
        sample = reader.pair()
    elif encoding == "unpaired":
        sample = replace(Sample(reader.conversation()), values={"label": reader.label()})
    else:
        sample = Sample(reader.conversation())
    extras = {name: value for name, value in row.items() if name not in reader.used}
    return Sample(sample.conversation, sample.rejected, sample.values, extras)


def check_format(row: RowData, encoding: str, place: str, tags: RoleTags = STANDARD_TAGS) -> None:
    """Refuses a data set whose first row has no columns that are understood."""
    try:
        understand(row, encoding, place, tags)
    except Unusable as unusable:
        if unusable.reason == UNKNOWN_FORMAT:
            raise DataError(
                f"{place}: {unusable.detail}",
                hint=f'Understood are {UNDERSTOOD}. Rename columns with --columns \'{{"yours": "query"}}\'.',
            ) from None


UNKNOWN_FORMAT = "unknown format"


class _Reader:
    """Reads one row and remembers which columns were used."""

    def __init__(self, row: RowData, place: str, tags: RoleTags) -> None:
        self.used: set[str] = set()
        self._row = row
        self._place = place
        self._tags = tags

    def conversation(self) -> Conversation:
        """The conversation of a row, of whichever format."""
        if (messages := self._take(MESSAGES)) is not None:
            return self._messages(messages)
        if self._has(QUESTION) and self._has(ANSWER):
            return self._question_and_answer()
        if "text" in self._row:
            return raw_text(self._string("text"))
        raise self._unknown("no columns that are understood")

    def pair(self) -> Sample:
        """A better and a worse conversation."""
        if "chosen" in self._row and "rejected" in self._row:
            better, worse = self._completed("chosen"), self._completed("rejected")
        elif "rejected_messages" in self._row:
            better = self.conversation()
            self.used.add("rejected_messages")
            worse = self._messages(self._row["rejected_messages"], tools=list(better.tools))
        elif "rejected_response" in self._row:
            better = self.conversation()
            self.used.add("rejected_response")
            prompt = better.messages[: better.last_round]
            worse = self._answered(prompt, self._row["rejected_response"], tools=list(better.tools))
        else:
            raise self._unknown("no worse answer (rejected_response, rejected_messages, or chosen and rejected)")
        if better.messages == worse.messages:
            raise Unusable("chosen equals rejected", "the better and the worse answer are the same")
        if better.messages[: better.last_round] != worse.messages[: worse.last_round]:
            raise Unusable("chosen and rejected answer different questions", "their prompts differ")
        return Sample(better, rejected=worse, values=self._margin())

    def label(self) -> float:
        """Whether the answer is a good one."""
        self.used.add("label")
        label = self._row.get("label")
        if label is None:
            raise self._unknown("no boolean column 'label'")
        truth = _TRUTH.get(label.strip().lower()) if isinstance(label, str) else None
        if isinstance(label, bool | int | float) and label in (0, 1):
            truth = bool(label)
        if truth is None:
            raise Unusable("malformed label", f"the label is {label!r}; it should be true or false")
        return float(truth)

    def _margin(self) -> dict[str, float]:
        if "margin" not in self._row:
            return {}
        self.used.add("margin")
        try:
            margin = float(self._row["margin"])
        except (TypeError, ValueError, OverflowError):
            margin = math.nan
        if not math.isfinite(margin):
            raise Unusable("malformed margin", f"the margin is {self._row['margin']!r}, not a number") from None
        return {"margin": margin}

    def _completed(self, column: str) -> Conversation:
        """`chosen` or `rejected`: a whole conversation, the end of one, or an answer to the question columns."""
        self.used.add(column)
        answer = self._row[column]
        messages = self._take(MESSAGES) if _speaks_last(answer) else None
        if messages is not None:  # LLaMA-Factory's ranking: the conversation so far, and the two answers to it
            return self._answered(parse_json(messages, "messages"), answer)
        if isinstance(answer, str) or _speaks_last(answer):
            question = self._take(QUESTION)
            if question is None:
                raise self._unknown(f"an answer ({column!r}) but no question (prompt, query or instruction)")
            if isinstance(question, list | tuple):
                return self._answered(question, answer)
            return self._answered(self._history(self._with_input(question)), answer)
        self._take(QUESTION)  # the conversation repeats it
        return self._messages(answer)

    def _answered(self, prompt: Any, answer: object, tools: object = None) -> Conversation:
        """The prompt's messages, and the answer: a string, a message, or the messages of a round."""
        if not isinstance(prompt, list | tuple):
            raise Unusable("no messages", f"the question is a {type(prompt).__name__}, not a list of messages")
        said: Sequence[Any]
        if isinstance(answer, str):
            said = [{self._tags.role_keys[0]: "assistant", self._tags.content_keys[0]: answer}]
        else:
            said = answer if isinstance(answer, list | tuple) else [answer]
        return self._messages([*prompt, *said], tools=tools)

    def _messages(self, messages: object, tools: object = None) -> Conversation:
        if tools is None:
            tools = self._row.get("tools")
            self.used.add("tools")
        return read_messages(messages, system=self._system(), tools=tools, tags=self._tags)

    def _question_and_answer(self) -> Conversation:
        plain = "prompt" in self._row and "completion" in self._row
        question, answer = self._take(QUESTION), self._take(ANSWER)
        if isinstance(question, list | tuple) or isinstance(answer, list | tuple):
            start = [{"role": "user", "content": question}] if isinstance(question, str) else question
            return self._answered(start, answer)
        question, answer = self._with_input(question), self._say("answer", answer)
        if "tools" in self._row:
            return self._answered(self._history(question), answer)
        conversation = self._pairs(question, answer)
        return replace(conversation, plain=plain and len(conversation.messages) == 2)

    def _pairs(self, question: str, answer: str) -> Conversation:
        return checked(rounds([*self._past(), (question, answer)], self._system()))

    def _history(self, question: str) -> list[dict[str, str]]:
        role, content = self._tags.role_keys[0], self._tags.content_keys[0]
        messages = []
        for asked, answered in self._past():
            messages += [{role: "user", content: asked}, {role: "assistant", content: answered}]
        return [*messages, {role: "user", content: question}]

    def _past(self) -> list[tuple[str, str]]:
        self.used.add("history")
        history = parse_json(self._row.get("history") or [], "the column 'history'")
        if not isinstance(history, list | tuple) or not all(
            isinstance(turn, list | tuple) and len(turn) == 2 for turn in history
        ):
            raise Unusable("malformed history", "the history is not a list of [question, answer]")
        return [(self._say("history", asked), self._say("history", answered)) for asked, answered in history]

    def _with_input(self, question: object) -> str:
        text = self._say("question", question)
        if "input" not in self._row:
            return text
        more = self._string("input")
        return "\n".join(part for part in (text, more) if part)

    def _system(self) -> str | None:
        system = self._take(SYSTEM)
        return None if system is None else self._say("system message", system)

    def _string(self, column: str) -> str:
        self.used.add(column)
        return self._say(f"column {column!r}", self._row[column])

    def _say(self, what: str, value: object) -> str:
        if not isinstance(value, str):
            raise Unusable("not a text", f"the {what} is a {type(value).__name__}, not a text")
        return value

    def _has(self, names: tuple[str, ...]) -> bool:
        return any(name in self._row for name in names)

    def _take(self, names: tuple[str, ...]) -> Any:
        """The value of the one column among these synonyms that is there."""
        present = [name for name in names if name in self._row]
        if len(present) > 1:
            raise _collision(present[0], present[1], names[0], self._place)
        self.used.update(present)
        return self._row[present[0]] if present else None

    def _unknown(self, what: str) -> Unusable:
        return Unusable(UNKNOWN_FORMAT, f"{what}; the columns are {', '.join(self._row) or 'none'}")


def _speaks_last(answer: object) -> bool:
    """Whether it is one message, or begins with the assistant: an answer rather than a whole conversation."""
    if isinstance(answer, Mapping):
        return True
    first = answer[0] if isinstance(answer, list | tuple) and answer else None
    return isinstance(first, Mapping) and (first.get("role") or first.get("from")) in ("assistant", "gpt")


def _collision(one: str, other: str, target: str, place: str) -> DataError:
    return DataError(
        f"{place}: the columns {one!r} and {other!r} both mean {target!r}.",
        hint=f'Rename the one that is not meant: --columns \'{{"{other}": "unused"}}\'.',
    )

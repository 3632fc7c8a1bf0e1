"""Answers to many questions at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from swift.contracts import Sampling
from swift.infer.answers import Answer, ChatEngine
from swift.infer.image_messages import written
from swift.infer.questions import Question
from swift.infer.resume_file import Journal
from swift.terminal import progress

LineOf = Callable[[Question, Answer], Mapping[str, Any]]

WINDOW = 8192
"""Questions that are in memory at a time: enough for an engine to fill its batches from."""


class Asked(Protocol):
    """Questions by number, understood when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Question: ...

    def __iter__(self) -> Iterator[Question]: ...


def answered(
    chat_engine: ChatEngine, questions: Asked, sampling: Sampling, rows: Sequence[int] | None = None
) -> Iterator[tuple[int, Question, Answer]]:
    """Yield (row, question, answer) as answers are ready, with a progress bar.

    With `rows`, of these alone; their draws are the same as among all rows.
    """
    chosen = range(len(questions)) if rows is None else rows

    def work() -> Iterator[tuple[int, Question, Answer]]:
        for start in range(0, len(chosen), WINDOW):
            some = chosen[start : start + WINDOW]
            asked = [questions[row] for row in some]
            for place, answer in chat_engine.answers(asked, replace(sampling, numbers=tuple(some))):
                yield some[place], asked[place], answer

    yield from progress(work(), "answering", total=len(chosen))


def answers(chat_engine: ChatEngine, questions: Asked, sampling: Sampling) -> list[str]:
    """Return the text of one answer per question, in their order."""
    texts = [""] * len(questions)
    for row, _, answer in answered(chat_engine, questions, sampling):
        texts[row] = answer.text
    return texts


def print_answers(chat_engine: ChatEngine, questions: Asked, sampling: Sampling) -> None:
    """Answer on the terminal: the text alone where there is one question, else a line of JSON for each, in order."""
    ready: dict[int, str] = {}
    told = 0
    for row, question, answer in answered(chat_engine, questions, sampling):
        line = json.dumps(line_of(question, answer), ensure_ascii=False, default=str)
        ready[row] = answer.text if len(questions) == 1 else line
        while told in ready:
            sys.stdout.write(f"{ready.pop(told)}\n")
            sys.stdout.flush()
            told += 1


def stream_answers(chat_engine: ChatEngine, questions: Asked, sampling: Sampling) -> None:
    """Answer one question after the other on the terminal, with the text as it is generated."""
    for row, question in enumerate(questions):
        for piece in chat_engine.stream(question.messages, replace(sampling, numbers=(row,))):
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")


def write_answers(
    chat_engine: ChatEngine, questions: Asked, sampling: Sampling, journal: Journal, *, line: LineOf | None = None
) -> int:
    """Answer the questions that the journal has no answer to, into it; returns how many answers were cut off.

    `line` makes what is written of an answer.
    """
    make = line or line_of
    cut = 0
    for row, question, answer in answered(chat_engine, questions, sampling, journal.left()):
        journal.write(row, make(question, answer))
        cut += answer.finish_reason == "length"
    return cut


def line_of(question: Question, answer: Answer) -> Mapping[str, Any]:
    """Return the line written for an answer: the conversation, the expected answer, and the row's other columns."""
    line: dict[str, Any] = {"messages": [*written(question.messages), {"role": "assistant", "content": answer.text}]}
    if question.expected is not None:
        line["expected"] = question.expected
    if answer.finish_reason != "stop":
        line["finish_reason"] = answer.finish_reason
    return {**question.extras, **line}

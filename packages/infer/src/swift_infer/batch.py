"""Responses to many questions at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from swift.contracts import Sampling
from swift.terminal import progress
from swift_infer.image_messages import written
from swift_infer.questions import Question
from swift_infer.response import ChatEngine, Response
from swift_infer.resume_file import ResumeFile

LineOf = Callable[[Question, Response], Mapping[str, Any]]

WINDOW = 8192
"""Questions in memory at a time: enough for an engine to fill its batches from."""


def generate_responses(
    chat_engine: ChatEngine, questions: Sequence[Question], sampling: Sampling, rows: Sequence[int] | None = None
) -> Iterator[tuple[int, Question, Response]]:
    """Yield (row, question, response) in the order of completion, with a progress bar.

    `rows` selects some of the questions; they get the same samples as among all rows.
    """
    chosen = range(len(questions)) if rows is None else rows

    def work() -> Iterator[tuple[int, Question, Response]]:
        for start in range(0, len(chosen), WINDOW):
            window = chosen[start : start + WINDOW]
            batch = [questions[row] for row in window]
            for index, response in chat_engine.respond(batch, replace(sampling, numbers=tuple(window))):
                yield window[index], batch[index], response

    yield from progress(work(), "generating", total=len(chosen))


def response_strings(chat_engine: ChatEngine, questions: Sequence[Question], sampling: Sampling) -> list[str]:
    """Return one response per question, in order."""
    strings = [""] * len(questions)
    for row, _, response in generate_responses(chat_engine, questions, sampling):
        strings[row] = response.text
    return strings


def print_responses(chat_engine: ChatEngine, questions: Sequence[Question], sampling: Sampling) -> None:
    """Print the response to a single question as text, those to several as lines of JSON in order."""
    ready: dict[int, str] = {}
    printed = 0
    for row, question, response in generate_responses(chat_engine, questions, sampling):
        line = json.dumps(line_of(question, response), ensure_ascii=False, default=str)
        ready[row] = response.text if len(questions) == 1 else line
        while printed in ready:
            sys.stdout.write(f"{ready.pop(printed)}\n")
            sys.stdout.flush()
            printed += 1


def stream_responses(chat_engine: ChatEngine, questions: Sequence[Question], sampling: Sampling) -> None:
    """Print one response after the other while it is generated."""
    for row, question in enumerate(questions):
        for piece in chat_engine.stream(question.messages, replace(sampling, numbers=(row,))):
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")


def write_responses(
    chat_engine: ChatEngine,
    questions: Sequence[Question],
    sampling: Sampling,
    file: ResumeFile,
    *,
    line: LineOf | None = None,
) -> int:
    """Write the responses that a file still lacks; return how many were cut off. `line` makes the line of each."""
    make = line or line_of
    cut = 0
    for row, question, response in generate_responses(chat_engine, questions, sampling, file.left()):
        file.write(row, make(question, response))
        cut += response.finish_reason == "length"
    return cut


def line_of(question: Question, response: Response) -> Mapping[str, Any]:
    """Return the line of a response: the conversation, the expected answer, and the row's other columns."""
    line: dict[str, Any] = {"messages": [*written(question.messages), {"role": "assistant", "content": response.text}]}
    if question.expected is not None:
        line["expected"] = question.expected
    if response.finish_reason != "stop":
        line["finish_reason"] = response.finish_reason
    return {**question.extras, **line}

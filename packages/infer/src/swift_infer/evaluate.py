"""Evaluation of responses on a data set with expected answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swift.config.sections import DataSection
from swift.contracts import ImagePrompt
from swift.errors import DataError
from swift.terminal import Say, progress, say_nothing
from swift_infer.batch import WINDOW
from swift_infer.chat_engine import LocalChatEngine
from swift_infer.image_messages import written
from swift_infer.questions import Question
from swift_infer.response import Response
from swift_infer.response_metrics import ResponseMetric


def with_expected(questions: Sequence[Question], *, say: Say = say_nothing) -> list[Question]:
    """Return the questions with an expected answer; report how many have none."""
    kept = [question for question in questions if question.expected is not None]
    if not kept:
        raise DataError(
            f"None of the {len(questions)} rows has an expected answer.",
            hint="Use rows that end with an assistant message. To generate without comparing: swift infer",
        )
    if left := len(questions) - len(kept):
        say(f"Skipping {left:,} of {len(questions):,} rows, which have no expected answer")
    return kept


def evaluation_line(question: Question, response: Response, metric: ResponseMetric) -> dict[str, Any]:
    """Return the line of a response, with the columns of a metric."""
    expected = str(question.expected)
    line = {"messages": written(question.messages), "response": response.text, "expected": question.expected}
    return {**question.extras, **line, **metric.of_response(response.text, expected)}


def score_loss(
    chat_engine: LocalChatEngine, names: Sequence[str], columns: dict[str, str], *, say: Say = say_nothing
) -> dict[str, float]:
    """Return mean loss and token accuracy of the expected answers, as in training; report unusable rows."""
    from swift.data import prepare_data

    section = DataSection(train=tuple(names), columns=columns, system=chat_engine.system)
    data = prepare_data(
        section, chat_engine.tokenizer, encoding="chat", seed=0, say=say_nothing, images=chat_engine.image_rules
    )
    assert data.train is not None
    for line in data.report.lines_of_rejected():
        say(line)
    samples = data.train.samples
    loss = weight = right = counted = 0.0

    def work() -> Any:
        for start in range(0, len(samples), WINDOW):
            some = [samples[index].segments[0] for index in range(start, min(start + WINDOW, len(samples)))]
            prompts = [ImagePrompt.of(segment.input_ids.tolist(), segment.media) for segment in some]
            for index, score in chat_engine.engine.score(prompts):
                yield some[index].weights[1:].tolist(), score

    for weights, score in progress(work(), "scoring", total=len(samples)):
        for each, logprob, likeliest in zip(weights, score.logprobs, score.likeliest, strict=True):
            if each > 0:
                loss, weight = loss - each * logprob, weight + each
                right, counted = right + likeliest, counted + 1
    return {"loss": loss / weight, "token_acc": right / counted, "tokens": counted}

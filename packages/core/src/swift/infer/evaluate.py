"""Evaluation of answers on a data set with expected ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swift.config.sections import DataSection
from swift.contracts import ImagePrompt
from swift.data.samples import Segment
from swift.errors import DataError
from swift.infer.answer_metrics import AnswerMetric
from swift.infer.answers import Answer
from swift.infer.batch import WINDOW, Asked
from swift.infer.chat_engine import LocalChatEngine
from swift.infer.image_messages import written
from swift.infer.questions import Question
from swift.terminal import Say, progress, say_nothing


def with_answers(questions: Asked, *, say: Say = say_nothing) -> list[Question]:
    """Return the questions that have an answer to compare with; say how many have none."""
    asked = [question for question in questions if question.expected is not None]
    if not asked:
        raise DataError(
            f"None of the {len(questions)} questions has an answer to compare with.",
            hint="Give a data set whose rows end with the assistant's message, or ask with swift infer.",
        )
    if left := len(questions) - len(asked):
        say(f"{left:,} of {len(questions):,} questions have no answer to compare with, and are not asked")
    return asked


def judged(question: Question, answer: Answer, metric: AnswerMetric) -> dict[str, Any]:
    """Return a line that says how an answer compares with the expected one, by a metric."""
    expected = str(question.expected)
    asked = {"messages": written(question.messages), "answer": answer.text, "expected": question.expected}
    return {**question.extras, **asked, **metric.of_answer(answer.text, expected)}


def score_loss(
    chat_engine: LocalChatEngine, names: Sequence[str], columns: dict[str, str], *, say: Say = say_nothing
) -> dict[str, float]:
    """Return mean loss and token accuracy of the expected answers, as in training; say which rows cannot be used."""
    from swift.data.pipeline import prepare_data  # imports torch, which counting right answers does without

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
            for place, score in chat_engine.engine.score([_prompt(segment) for segment in some]):
                yield some[place].weights[1:].tolist(), score

    for weights, score in progress(work(), "scoring", total=len(samples)):
        for each, logprob, likeliest in zip(weights, score.logprobs, score.likeliest, strict=True):
            if each > 0:
                loss, weight = loss - each * logprob, weight + each
                right, counted = right + likeliest, counted + 1
    return {"loss": loss / weight, "token_acc": right / counted, "tokens": counted}


def _prompt(segment: Segment) -> ImagePrompt:
    return ImagePrompt.of(segment.input_ids.tolist(), segment.media)

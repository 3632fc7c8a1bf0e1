"""Evaluation of answers on a data set with expected ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from swift.config.sections import DataSection
from swift.contracts import PicturedPrompt
from swift.data.samples import Segment
from swift.errors import DataError
from swift.infer.answers import Answer
from swift.infer.batch import WINDOW, Asked
from swift.infer.picture_messages import written
from swift.infer.questions import Question
from swift.infer.speaker import EngineSpeaker
from swift.terminal import progress, say_nothing


def with_answers(questions: Asked) -> list[Question]:
    """Return the questions that have an answer to compare with."""
    asked = [question for question in questions if question.expected is not None]
    if not asked:
        raise DataError(
            f"None of the {len(questions)} questions has an answer to compare with.",
            hint="Give a data set whose rows end with the assistant's message, or ask with swift infer.",
        )
    return asked


def judged(question: Question, answer: Answer) -> dict[str, Any]:
    """Return a line that says whether the answer equals the expected one, ignoring white space at its ends."""
    right = answer.text.strip() == str(question.expected).strip()
    asked = {
        "messages": written(question.messages),
        "answer": answer.text,
        "expected": question.expected,
        "right": right,
    }
    return {**question.extras, **asked}


def accuracy_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return how many of these lines are right."""
    rights: list[Any] = [line.get("right") for line in lines]
    if not all(isinstance(right, bool) for right in rights):
        raise DataError(
            "A line of the results does not say whether its answer is right.", hint="Start over: --overwrite"
        )
    return {"accuracy": sum(rights) / len(rights), "right": sum(rights), "questions": len(rights)}


def score_loss(speaker: EngineSpeaker, names: Sequence[str], columns: dict[str, str]) -> dict[str, float]:
    """Return mean loss and token accuracy of the expected answers, as in training."""
    from swift.data.pipeline import prepare_data  # imports torch, which counting right answers does without

    section = DataSection(train=tuple(names), columns=columns, system=speaker.system)
    data = prepare_data(
        section, speaker.tokenizer, encoding="chat", seed=0, say=say_nothing, pictures=speaker.picture_rules
    )
    assert data.train is not None
    samples = data.train.samples
    loss = weight = right = counted = 0.0

    def work() -> Any:
        for start in range(0, len(samples), WINDOW):
            some = [samples[index].segments[0] for index in range(start, min(start + WINDOW, len(samples)))]
            for place, score in speaker.engine.score([_prompt(segment) for segment in some]):
                yield some[place].weights[1:].tolist(), score

    for weights, score in progress(work(), "scoring", total=len(samples)):
        for each, logprob, likeliest in zip(weights, score.logprobs, score.likeliest, strict=True):
            if each > 0:
                loss, weight = loss - each * logprob, weight + each
                right, counted = right + likeliest, counted + 1
    return {"loss": loss / weight, "token_acc": right / counted, "tokens": counted}


def _prompt(segment: Segment) -> PicturedPrompt:
    return PicturedPrompt.of(segment.input_ids.tolist(), segment.media)

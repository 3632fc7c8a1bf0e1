"""How good answers are, on a data set that has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swift.config.sections import DataSection
from swift.contracts import Sampling
from swift.data.pipeline import prepare_data
from swift.errors import DataError
from swift.infer.batch import WINDOW, Asked, answered
from swift.infer.questions import Question
from swift.infer.speaker import EngineSpeaker, Speaker
from swift.train.progress import progress


def score_accuracy(speaker: Speaker, questions: Asked, sampling: Sampling, *, result: Path | None) -> dict[str, float]:
    """How often the whole answer is what the data set expects, white space at its ends left out."""
    asked = [question for question in questions if question.expected is not None]
    if not asked:
        raise DataError(
            f"None of the {len(questions)} questions has an answer to compare with.",
            hint="Give a data set whose rows end with the assistant's message, or ask with swift infer.",
        )
    lines: list[dict[str, Any]] = [{} for _ in asked]
    for row, question, answer in answered(speaker, asked, sampling):
        lines[row] = _judged(question, answer.text)
    if result is not None:
        with result.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    right = sum(line["right"] for line in lines)
    return {"accuracy": right / len(lines), "right": right, "questions": len(lines)}


def score_loss(speaker: EngineSpeaker, names: Sequence[str], columns: dict[str, str]) -> dict[str, float]:
    """Mean loss and token accuracy of the expected answers, as in training."""
    section = DataSection(train=tuple(names), columns=columns, system=speaker.system)
    data = prepare_data(section, speaker.tokenizer, encoding="chat", seed=0, say=_silent)
    assert data.train is not None
    samples = data.train.samples
    loss = weight = right = counted = 0.0

    def work() -> Any:
        for start in range(0, len(samples), WINDOW):
            some = [samples[index].segments[0] for index in range(start, min(start + WINDOW, len(samples)))]
            for place, score in speaker.engine.score([segment.input_ids.tolist() for segment in some]):
                yield some[place].weights[1:].tolist(), score

    for weights, score in progress(work(), "scoring", total=len(samples)):
        for each, logprob, likeliest in zip(weights, score.logprobs, score.likeliest, strict=True):
            if each > 0:
                loss, weight = loss - each * logprob, weight + each
                right, counted = right + likeliest, counted + 1
    return {"loss": loss / weight, "token_acc": right / counted, "tokens": counted}


def _judged(question: Question, text: str) -> dict[str, Any]:
    right = text.strip() == str(question.expected).strip()
    asked = {"messages": question.messages, "answer": text, "expected": question.expected, "right": right}
    return {**question.extras, **asked}


def _silent(_: str) -> None:
    pass

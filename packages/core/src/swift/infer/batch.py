"""Answers to many questions at once, and scores of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from swift.config.sections import DataSection
from swift.data.pipeline import prepare_data
from swift.data.sampler import evaluation_batches
from swift.errors import DataError
from swift.infer.generate import Sampling, answer_all, prompt_ids
from swift.infer.load import Speaker
from swift.infer.questions import Question
from swift.models.attention import choose_attention
from swift.models.view import ViewModule
from swift.objectives.likelihood import LikelihoodOptions, Sft
from swift.train.progress import progress


def answer_prompts(
    speaker: Speaker, prompts: Sequence[str], sampling: Sampling, *, batch: int, result: Path | None
) -> None:
    """Answer texts; on the terminal, or as JSONL in `result`."""
    questions = [Question([{"role": "user", "content": prompt}]) for prompt in prompts]
    answer_questions(speaker, questions, sampling, batch=batch, result=result)


def answer_questions(
    speaker: Speaker, questions: Sequence[Question], sampling: Sampling, *, batch: int, result: Path | None
) -> list[str]:
    """Answer questions, in their order; on the terminal, or as JSONL in `result`."""
    texts = answers(speaker, questions, sampling, batch=batch)
    with _output(result) as file:
        for question, text in zip(questions, texts, strict=True):
            if result is None and len(questions) == 1:
                file.write(f"{text}\n")
                continue
            line: dict[str, Any] = {"messages": [*question.messages, {"role": "assistant", "content": text}]}
            if question.expected is not None:
                line["expected"] = question.expected
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return texts


def score_accuracy(
    speaker: Speaker, questions: Sequence[Question], sampling: Sampling, *, batch: int, result: Path | None
) -> dict[str, float]:
    """How often the whole answer is what the data set expects, white space at its ends left out."""
    answered = [question for question in questions if question.expected is not None]
    if not answered:
        raise DataError(
            f"None of the {len(questions)} questions has an answer to compare with.",
            hint="Give a data set whose rows end with the assistant's message, or ask with swift infer.",
        )
    texts = answers(speaker, answered, sampling, batch=batch)
    right = [text.strip() == str(question.expected).strip() for question, text in zip(answered, texts, strict=True)]
    if result is not None:
        with _output(result) as file:
            for question, text, good in zip(answered, texts, right, strict=True):
                line = {"messages": question.messages, "answer": text, "expected": question.expected, "right": good}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return {"accuracy": sum(right) / len(right), "right": sum(right), "questions": len(right)}


@torch.no_grad()
def score_loss(speaker: Speaker, names: Sequence[str], columns: dict[str, str], *, batch: int) -> dict[str, float]:
    """Mean loss and token accuracy of the expected answers, as in training."""
    section = DataSection(train=tuple(names), columns=columns, system=speaker.system)
    data = prepare_data(section, speaker.tokenizer, encoding="chat", seed=0, say=_silent)
    assert data.train is not None
    objective = Sft(LikelihoodOptions())
    attention = choose_attention("auto", speaker.model.config, flat=False, device=speaker.device)
    view_of = ViewModule(speaker.model, attention=attention, say=_silent)
    loss = weight = correct = counted = 0.0
    for each in evaluation_batches(data.train.samples, objective, rows=batch, data_rank=0, data_size=1):
        for micro_batch in each.micro_batches():
            micro_batch = micro_batch.to(speaker.device)
            sums = objective.loss(view_of(micro_batch, objective.needs), micro_batch)
            loss += float(sums.loss)
            right, tokens = sums.metrics["token_acc"]
            correct, counted = correct + float(right), counted + float(tokens)
        weight += each.weight
    return {"loss": loss / weight, "token_acc": correct / counted, "tokens": counted}


def answers(speaker: Speaker, questions: Sequence[Question], sampling: Sampling, *, batch: int) -> list[str]:
    """The text of one answer per question, in their order."""
    prompts = [prompt_ids(speaker, question.messages, question.tools) for question in questions]
    texts = [""] * len(prompts)
    answered = answer_all(speaker, prompts, sampling, batch=batch)
    for index, ids in progress(answered, "answering", total=len(prompts)):
        texts[index] = speaker.tokenizer.decode(ids, skip_special_tokens=True)
    return texts


@contextmanager
def _output(path: Path | None) -> Iterator[IO[str]]:
    if path is None:
        yield sys.stdout
        return
    with path.open("w", encoding="utf-8") as file:
        yield file


def _silent(_: str) -> None:
    pass

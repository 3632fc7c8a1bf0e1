"""Prompts with their completions: sampled by a model, or read from files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from swift.errors import DataError
from swift.toolkit import print_note
from swift_infer import Question, Response, read_lines, read_questions, write_responses_to
from swift_rl.rewards.stored import read_completions
from swift_rl.sample.options import NO_ENGINE, SampleOptions

IDS = "completion_ids"


@dataclass
class SampledCompletion:
    """A completion of a prompt, with its rewards."""

    text: str
    token_ids: Sequence[int] = ()
    finish_reason: str = "stop"
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    failed: Sequence[str] = ()
    """Rewards that could not be computed."""


@dataclass
class SampledPrompt:
    """A prompt with its completions."""

    messages: Sequence[Mapping[str, Any]]
    columns: Mapping[str, Any]
    """The row's other columns."""
    source: str
    completions: list[SampledCompletion]
    expected: str | None = None
    """The data set's own response, if it has one."""

    @property
    def seen_by_rewards(self) -> Mapping[str, Any]:
        """The columns, with the expected response as `solution` if the row has none."""
        if self.expected is None or "solution" in self.columns:
            return self.columns
        return {**self.columns, "solution": self.expected}


def sampled_prompts(options: SampleOptions, kept_in: Path) -> list[SampledPrompt]:
    """Return the prompts with their completions, which are kept in a file from which an interrupted run continues."""
    questions: Sequence[Question] = ()
    if options.dataset:
        every = read_questions(options.dataset, options.columns, system=options.system)
        number, parts = options.data_range or (0, 1)
        first, end = len(every) * number // parts, len(every) * (number + 1) // parts
        questions = [every[index] for index in range(first, end)]
    if options.engine == NO_ENGINE:
        return _cached(options, questions)
    repeated = [question for question in questions for _ in range(options.num_return_sequences)]
    write_responses_to(kept_in, options, options.sampling, repeated, further=_settings(options), line=_line)
    lines = read_lines(kept_in)
    return [
        _prompt(question, [_completion(line) for line in islice(lines, options.num_return_sequences)])
        for question in questions
    ]


def _settings(options: SampleOptions) -> dict[str, Any]:
    part = {"data_range": list(options.data_range)} if options.data_range else {}
    return {"num_return_sequences": options.num_return_sequences, **part}


def _line(question: Question, response: Response) -> dict[str, Any]:
    messages = [*question.messages, {"role": "assistant", "content": response.text}]
    return {"messages": messages, "finish_reason": response.finish_reason, IDS: list(response.token_ids)}


def _completion(line: Mapping[str, Any]) -> SampledCompletion:
    return SampledCompletion(line["messages"][-1]["content"], line[IDS], line["finish_reason"])


def _prompt(question: Question, completions: list[SampledCompletion]) -> SampledPrompt:
    columns = dict(question.extras)
    if question.tools:
        columns["tools"] = list(question.tools)
    return SampledPrompt(question.messages, columns, question.source, completions, question.expected)


def _cached(options: SampleOptions, questions: Sequence[Question]) -> list[SampledPrompt]:
    """Return stored completions by prompt; with a data set, only those of its prompts, with its columns."""
    found: dict[str, SampledPrompt] = {}
    for file in options.cache_files:
        for item in read_completions(file):
            prompt = SampledPrompt(item.messages, item.columns, f"{file}, {item.source}", [])
            completion = SampledCompletion(item.completion, item.completion_ids, item.finish_reason)
            found.setdefault(_key(item.messages), prompt).completions.append(completion)
    if not questions:
        return list(found.values())
    known = [(question, found.pop(_key(question.messages), None)) for question in questions]
    prompts = [_prompt(question, prompt.completions) for question, prompt in known if prompt is not None]
    if not prompts:
        raise DataError(
            "No completion in --cache_files belongs to a prompt of --dataset.",
            hint="Messages must be equal: pass the same data set and --system as before, or leave --dataset out.",
        )
    if missing := len(known) - len(prompts):
        print_note(f"{missing} of {len(known)} prompts have no completion in --cache_files and are left out")
    if found:
        print_note(f"{len(found)} prompts of --cache_files are not in --dataset and are left out")
    return prompts


def _key(messages: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps([[each.get("role"), each.get("content")] for each in messages], ensure_ascii=False, default=str)

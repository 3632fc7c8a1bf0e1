"""The reward `judge`: a model behind an OpenAI-compatible address scores a completion."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from pydantic import Field, PositiveFloat

from swift.config.limits import Name, Threads
from swift.config.options import Section
from swift.contracts import RewardItem
from swift.errors import ConfigError, ModelError
from swift_infer import json_field
from swift_rl.rewards.models import posted

_PROMPT = (
    "Rate the answer to the question from 0 (useless) to {most} (perfect).\n\n"
    "Question:\n{question}\n\nReference solution:\n{solution}\n\nAnswer:\n{completion}\n\n"
    "Explain briefly, and end with a line of the form: Score: N"
)
_SCORE = re.compile(r"score\W*?(-?\d+(?:\.\d+)?)", re.IGNORECASE)


class JudgeOptions(Section):
    """Options of `judge`."""

    base_url: Name | None = Field(None, description="Address of the server: http://127.0.0.1:8000/v1")
    judge_model: Name | None = Field(None, description="Model name on the server; default: chosen by the server")
    prompt: str = Field(_PROMPT, description="Prompt template, with {question}, {solution}, {completion} and {most}")
    most: PositiveFloat = Field(10.0, description="The best score; the reward is the score divided by it")
    key_variable: Name = Field(
        "OPENAI_API_KEY", description="Environment variable with the API key, if the server needs one"
    )
    at_once: Threads = Field(8, description="Maximum number of concurrent requests")
    seconds: Annotated[PositiveFloat, Field(le=86400)] = Field(120.0, description="Timeout of a request")


class JudgeReward:
    """The score that a model gives, divided by the best one. It scores equal completions once, at temperature 0."""

    options_model = JudgeOptions
    isolation = "inline"
    batched = True

    def __init__(self, options: JudgeOptions) -> None:
        if options.base_url is None or not options.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                "The reward 'judge' needs the address of a server.",
                hint='Pass --reward_options \'{"judge": {"base_url": "http://127.0.0.1:8000/v1"}}\'',
            )
        try:
            options.prompt.format(question="", solution="", completion="", most=0)
        except (LookupError, ValueError) as problem:
            raise ConfigError(
                f"reward_options.judge.prompt is an invalid template: {problem!r}.",
                hint="Use {question}, {solution}, {completion} and {most}, and double other braces.",
            ) from None
        self._options = options
        self._address = f"{options.base_url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        self._known: dict[str, float] = {}

    def score(self, items: Sequence[RewardItem]) -> list[float | Exception]:
        """Return the score of each completion, or why there is none."""
        prompts = [self._prompt(item) for item in items]
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._known]
        with ThreadPoolExecutor(self._options.at_once) as threads:
            scored = dict(zip(new, threads.map(self._requested, new), strict=True))
        self._known.update({prompt: score for prompt, score in scored.items() if isinstance(score, float)})
        return [self._known[prompt] if prompt in self._known else scored[prompt] for prompt in prompts]

    def _prompt(self, item: RewardItem) -> str:
        question = item.messages[-1]["content"] if item.messages else ""
        return self._options.prompt.format(
            question=question,
            solution=item.columns.get("solution", "(none)"),
            completion=item.completion,
            most=f"{self._options.most:g}",
        )

    def _requested(self, prompt: str) -> float | Exception:
        options = self._options
        body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}], "temperature": 0}
        if options.judge_model is not None:
            body["model"] = options.judge_model
        try:
            key = os.environ.get(options.key_variable)
            response = posted(self._address, body, key=key, seconds=options.seconds)
            return self._read(json_field(self._address, response, "choices", 0, "message", "content", kind=str))
        except (OSError, ModelError) as problem:
            return problem

    def _read(self, reply: str) -> float:
        scores = _SCORE.findall(reply)
        if not scores or not 0 <= float(scores[-1]) <= self._options.most:
            raise ModelError(f"The judge returned no score from 0 to {self._options.most:g}: {reply[-200:]!r}.")
        return float(scores[-1]) / self._options.most

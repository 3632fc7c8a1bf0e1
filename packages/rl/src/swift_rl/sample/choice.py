"""Which of several answers become rows to train on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swift_rl.sample.answers import SampledAnswer, SampledPrompt
from swift_rl.sample.options import SampleOptions


@dataclass
class Tally:
    """Counts of what became of prompts and answers."""

    prompts: int = 0
    answers: int = 0
    passing: int = 0
    failed: int = 0
    """Answers that have no reward: one failed, or none applies."""
    cut_off: int = 0
    """Answers that are left out because they reached max_new_tokens."""
    too_easy: int = 0
    without_row: int = 0
    """Prompts none of whose answers is kept, besides those that are too easy."""
    rows: int = 0


@dataclass
class Choice:
    """Chooses rows among scored answers."""

    options: SampleOptions
    weights: Mapping[str, float]
    """By reward; without any, every answer is chosen."""
    tally: Tally = field(default_factory=Tally)

    def rows(self, prompt: SampledPrompt) -> list[dict[str, Any]]:
        """Return the rows of a prompt."""
        tally, scored = self.tally, [answer for answer in prompt.answers if self.reward(answer) is not None]
        passing = [answer for answer in scored if self.passes(answer)]
        tally.prompts += 1
        tally.answers += len(prompt.answers)
        tally.passing += len(passing)
        tally.failed += len(prompt.answers) - len(scored)
        limit = self.options.easy_query_threshold
        if limit is not None and len(passing) > limit * len(prompt.answers):
            tally.too_easy += 1
            return []
        found = [*getattr(self, f"_{self.options.rows}")(prompt, scored, passing)]
        tally.rows += len(found)
        tally.without_row += not found
        return found

    def reward(self, answer: SampledAnswer) -> float | None:
        """Return the weighted sum; None where a reward failed, or none applies."""
        if not self.weights:
            return 0.0
        values = [(weight, answer.rewards[name]) for name, weight in self.weights.items()]
        applied = [weight * value for weight, value in values if value is not None]
        return None if answer.failed or not applied else sum(applied)

    def passes(self, answer: SampledAnswer) -> bool:
        """Return whether an answer exceeds every threshold; without any, whether its reward is above 0."""
        if not self.weights:
            return True
        limits = dict(self.options.thresholds)
        least = self.options.reward_threshold
        if not limits:
            least = 0.0 if least is None else least
        over = [value is not None and value > limits[name] for name, value in answer.rewards.items() if name in limits]
        total = self.reward(answer)
        return all(over) and total is not None and (least is None or total > least)

    @property
    def _filters(self) -> bool:
        return self.options.reward_threshold is not None or bool(self.options.thresholds)

    def _best(self, scored: Sequence[SampledAnswer], passing: Sequence[SampledAnswer]) -> list[SampledAnswer]:
        """Return the answers to keep, the best first; of texts that are alike the first one."""
        eligible = passing if self._filters else scored
        chosen = [answer for answer in eligible if answer.finish_reason != "length" or self.options.keep_truncated]
        self.tally.cut_off += len(eligible) - len(chosen)
        if not self.weights:
            return chosen
        ranked = sorted(chosen, key=lambda answer: -(self.reward(answer) or 0.0))
        distinct = {answer.text: answer for answer in reversed(ranked)}
        return sorted(distinct.values(), key=ranked.index)[: self.options.n_best_to_keep]

    def _sft(
        self, prompt: SampledPrompt, scored: Sequence[SampledAnswer], passing: Sequence[SampledAnswer]
    ) -> Iterator[dict[str, Any]]:
        for answer in self._best(scored, passing):
            yield self._row(prompt, answer)

    def _dpo(
        self, prompt: SampledPrompt, scored: Sequence[SampledAnswer], passing: Sequence[SampledAnswer]
    ) -> Iterator[dict[str, Any]]:
        if not scored:
            return
        worst = min(scored, key=lambda answer: self.reward(answer) or 0.0)
        least = self.reward(worst) or 0.0
        for answer in self._best(scored, passing):
            if (self.reward(answer) or 0.0) > least:
                yield {
                    **self._row(prompt, answer),
                    "rejected_response": worst.text,
                    "rejected_reward": least,
                }

    def _kto(
        self, prompt: SampledPrompt, scored: Sequence[SampledAnswer], passing: Sequence[SampledAnswer]
    ) -> Iterator[dict[str, Any]]:
        for answer in scored:
            yield {**self._row(prompt, answer), "label": any(answer is each for each in passing)}

    def _row(self, prompt: SampledPrompt, answer: SampledAnswer) -> dict[str, Any]:
        told = {"reward": self.reward(answer), "rewards": dict(answer.rewards)} if self.weights else {}
        messages = [*map(dict, prompt.messages), {"role": "assistant", "content": answer.text}]
        return {**prompt.columns, "messages": messages, **told}

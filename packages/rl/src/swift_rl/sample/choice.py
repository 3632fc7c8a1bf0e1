"""Which of several completions become rows to train on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swift_rl.sample.completions import SampledCompletion, SampledPrompt
from swift_rl.sample.options import SampleOptions


@dataclass
class Tally:
    """Counts of what became of prompts and completions."""

    prompts: int = 0
    completions: int = 0
    passing: int = 0
    failed: int = 0
    """Completions that have no reward: one failed, or none applies."""
    cut_off: int = 0
    """Completions that are left out because they reached max_new_tokens."""
    too_easy: int = 0
    without_row: int = 0
    """Prompts none of whose completions is kept, besides those that are too easy."""
    rows: int = 0


@dataclass
class Choice:
    """Chooses rows among scored completions."""

    options: SampleOptions
    weights: Mapping[str, float]
    """By reward; without any, every completion is chosen."""
    tally: Tally = field(default_factory=Tally)

    def rows(self, prompt: SampledPrompt) -> list[dict[str, Any]]:
        """Return the rows of a prompt."""
        tally = self.tally
        scored = [completion for completion in prompt.completions if self.reward(completion) is not None]
        passing = [completion for completion in scored if self.passes(completion)]
        tally.prompts += 1
        tally.completions += len(prompt.completions)
        tally.passing += len(passing)
        tally.failed += len(prompt.completions) - len(scored)
        limit = self.options.easy_query_threshold
        if limit is not None and len(passing) > limit * len(prompt.completions):
            tally.too_easy += 1
            return []
        found = [*getattr(self, f"_{self.options.rows}")(prompt, scored, passing)]
        tally.rows += len(found)
        tally.without_row += not found
        return found

    def reward(self, completion: SampledCompletion) -> float | None:
        """Return the weighted sum; None where a reward failed, or none applies."""
        if not self.weights:
            return 0.0
        values = [(weight, completion.rewards[name]) for name, weight in self.weights.items()]
        applied = [weight * value for weight, value in values if value is not None]
        return None if completion.failed or not applied else sum(applied)

    def passes(self, completion: SampledCompletion) -> bool:
        """Return whether a completion exceeds every threshold; without any, whether its reward is above 0."""
        if not self.weights:
            return True
        limits = dict(self.options.thresholds)
        least = self.options.reward_threshold
        if not limits:
            least = 0.0 if least is None else least
        over = [
            value is not None and value > limits[name] for name, value in completion.rewards.items() if name in limits
        ]
        total = self.reward(completion)
        return all(over) and total is not None and (least is None or total > least)

    @property
    def _filters(self) -> bool:
        return self.options.reward_threshold is not None or bool(self.options.thresholds)

    def _best(
        self, scored: Sequence[SampledCompletion], passing: Sequence[SampledCompletion]
    ) -> list[SampledCompletion]:
        """Return the completions to keep, the best first; of equal ones the first."""
        eligible = passing if self._filters else scored
        chosen = [
            completion for completion in eligible if completion.finish_reason != "length" or self.options.keep_truncated
        ]
        self.tally.cut_off += len(eligible) - len(chosen)
        if not self.weights:
            return chosen
        ranked = sorted(chosen, key=lambda completion: -(self.reward(completion) or 0.0))
        distinct = {completion.text: completion for completion in reversed(ranked)}
        return sorted(distinct.values(), key=ranked.index)[: self.options.n_best_to_keep]

    def _sft(
        self, prompt: SampledPrompt, scored: Sequence[SampledCompletion], passing: Sequence[SampledCompletion]
    ) -> Iterator[dict[str, Any]]:
        for completion in self._best(scored, passing):
            yield self._row(prompt, completion)

    def _dpo(
        self, prompt: SampledPrompt, scored: Sequence[SampledCompletion], passing: Sequence[SampledCompletion]
    ) -> Iterator[dict[str, Any]]:
        if not scored:
            return
        worst = min(scored, key=lambda completion: self.reward(completion) or 0.0)
        least = self.reward(worst) or 0.0
        for completion in self._best(scored, passing):
            if (self.reward(completion) or 0.0) > least:
                yield {
                    **self._row(prompt, completion),
                    "rejected_response": worst.text,
                    "rejected_reward": least,
                }

    def _kto(
        self, prompt: SampledPrompt, scored: Sequence[SampledCompletion], passing: Sequence[SampledCompletion]
    ) -> Iterator[dict[str, Any]]:
        for completion in scored:
            yield {**self._row(prompt, completion), "label": any(completion is each for each in passing)}

    def _row(self, prompt: SampledPrompt, completion: SampledCompletion) -> dict[str, Any]:
        scores = {"reward": self.reward(completion), "rewards": dict(completion.rewards)} if self.weights else {}
        messages = [*map(dict, prompt.messages), {"role": "assistant", "content": completion.text}]
        return {**prompt.columns, "messages": messages, **scores}

"""Rewards for how long a completion is, and how often it repeats itself."""

from __future__ import annotations

import math

from pydantic import Field

from swift.config.limits import Tokens
from swift.config.options import Section
from swift.contracts import RewardItem
from swift.errors import ConfigError
from swift_rl.reward_options import CosineFields, OverlongFields, RepetitionFields
from swift_rl.rewards.base import CompletionReward
from swift_rl.rewards.mathematics import AccuracyReward


class LengthOptions(Section):
    """Options of `length`."""

    max_completion_length: Tokens | None = Field(None, description="Tokens for which the reward is -1")


class LengthReward(CompletionReward):
    """-tokens / max_completion_length: the shorter, the better."""

    options_model = LengthOptions
    isolation = "inline"

    def __init__(self, options: LengthOptions) -> None:
        self._most = _known(options.max_completion_length, "length", "max_completion_length")

    def score_one(self, item: RewardItem) -> float:
        """Return the value of a completion."""
        return -len(item.completion_ids) / self._most


class TargetLengthOptions(Section):
    """Options of `target_length`."""

    tokens: Tokens | None = Field(None, description="Target length")


class TargetLengthReward(CompletionReward):
    """-|tokens - wanted| / wanted, -1 at the least: the nearer, the better."""

    options_model = TargetLengthOptions
    isolation = "inline"

    def __init__(self, options: TargetLengthOptions) -> None:
        self._target = _known(options.tokens, "target_length", 'reward_options \'{"target_length": {"tokens": 100}}\'')

    def score_one(self, item: RewardItem) -> float:
        """Return the value of a completion."""
        return -min(abs(len(item.completion_ids) - self._target) / self._target, 1.0)


class SoftOverlongOptions(OverlongFields):
    """Options of `soft_overlong`."""

    max_completion_length: Tokens | None = Field(None, description="Default of soft_max_length")


class SoftOverlongReward(CompletionReward):
    """0 up to soft_max_length - soft_cache_length tokens, then falling to -1 (DAPO, arXiv 2503.14476, equation 13)."""

    options_model = SoftOverlongOptions
    isolation = "inline"

    def __init__(self, options: SoftOverlongOptions) -> None:
        longest = options.soft_max_length or options.max_completion_length
        self._longest = _known(longest, "soft_overlong", "soft_max_length")
        self._cache = _known(options.soft_cache_length, "soft_overlong", "soft_cache_length")
        if self._cache >= self._longest:
            raise ConfigError(
                f"soft_cache_length {self._cache} must be less than soft_max_length {self._longest}.",
                hint=f"Pass --soft_cache_length {max(self._longest // 4, 1)}",
            )

    def score_one(self, item: RewardItem) -> float:
        """Return the value of a completion."""
        return max(min(0.0, (self._longest - self._cache - len(item.completion_ids)) / self._cache), -1.0)


class RepetitionReward(CompletionReward):
    """(1 - different / all n-grams of words) · repetition_max_penalty (arXiv 2502.03373, appendix C.2)."""

    options_model = RepetitionFields
    isolation = "inline"

    def __init__(self, options: RepetitionFields) -> None:
        self._size = options.repetition_n_grams
        self._penalty = options.repetition_max_penalty

    def score_one(self, item: RewardItem) -> float:
        """Return the value of a completion."""
        tokens = item.completion.lower().split()
        grams = [*zip(*(tokens[start:] for start in range(self._size)), strict=False)]
        return (1 - len(set(grams)) / len(grams)) * self._penalty if grams else 0.0


class CosineOptions(CosineFields):
    """Options of `cosine`."""

    max_completion_length: Tokens | None = Field(None, description="Default of cosine_max_len")


class CosineReward(CompletionReward):
    """A reward between two bounds along a cosine of the length, one pair for right completions and one for wrong ones.

    Right and wrong are what `accuracy` says (arXiv 2502.03373, appendix C.1).
    """

    options_model = CosineOptions
    wants = ("solution",)

    def __init__(self, options: CosineOptions) -> None:
        self._options = options
        self._longest = _known(options.cosine_max_len or options.max_completion_length, "cosine", "cosine_max_len")
        self._accuracy = AccuracyReward()

    def score_one(self, item: RewardItem) -> float | None:
        """Return the value of a completion."""
        options, right = self._options, self._accuracy.score_one(item)
        if right is None:
            return None
        if right >= 1.0:
            short, long = options.cosine_min_len_value_correct, options.cosine_max_len_value_correct
        else:
            short, long = options.cosine_min_len_value_wrong, options.cosine_max_len_value_wrong
        part = min(len(item.completion_ids) / self._longest, 1.0)  # beyond the longest a cosine would rise again
        return short + (long - short) * (1 - math.cos(math.pi * part)) / 2


def _known(value: int | None, reward: str, flag: str) -> int:
    if value is None:
        raise ConfigError(f"The reward {reward!r} needs --{flag.split()[0]}.", hint=f"Pass --{flag} and a value.")
    return value

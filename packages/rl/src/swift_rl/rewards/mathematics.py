"""The reward `accuracy`: whether a completion and the solution are the same mathematically."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

from swift.contracts import RewardItem
from swift.errors import ConfigError
from swift.installation import pip_install
from swift_rl.rewards.base import CompletionReward, solutions_of, tagged_answer


class AccuracyReward(CompletionReward):
    """1 if math-verify finds the answer equal to the solution, else 0; None if it cannot read the solution.

    The answer is what stands between `<answer>` tags, or else the LaTeX in a box or after words such as "the final
    answer is". The time limits of math-verify are off: they use signals, and the reward's process can be ended.
    """

    wants = ("solution",)

    def __init__(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError(
                "The rewards 'accuracy' and 'cosine' need math-verify, which is not installed.",
                hint=f"Run: {pip_install('swift-rl[math]')}   or use --reward_funcs number or exact_match",
            )

    def score_one(self, item: RewardItem) -> float | None:
        """Return the value of a completion."""
        from math_verify import verify

        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at each call that its limits are off
        golds = [gold for each in solutions_of(item.columns) if (gold := _parsed(tagged_answer(each) or each))]
        if not golds:
            return None
        tagged = tagged_answer(item.completion)
        parsed = _parsed(tagged) if tagged is not None else _parsed(item.completion, latex=True)
        return float(any(verify(gold, parsed, timeout_seconds=None) for gold in golds))


def _parsed(text: str, *, latex: bool = False) -> list[Any]:
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    reads = {}
    if latex:
        config = LatexExtractionConfig(
            normalization_config=NormalizationConfig(units=True),
            boxed_match_priority=0,
            try_extract_without_anchor=False,
        )
        reads = {"extraction_config": [config]}
    found: list[Any] = parse(text, extraction_mode="first_match", parsing_timeout=None, **reads)
    return found

"""Checks of the options of rounds, made before any weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift.errors import ConfigError

if TYPE_CHECKING:
    from swift.contracts import PlanContext
    from swift_rl.options import GrpoOptions


def prompts_per_round(global_rows: int, options: GrpoOptions) -> int:
    """Return how many prompts a round answers; refuse rows that groups do not divide."""
    answers = global_rows * options.steps_per_generation
    prompts, rest = divmod(answers, options.num_generations)
    if rest:
        raise ConfigError(
            f"A round has {answers} answers, and groups have {options.num_generations} (num_generations): it takes "
            "whole groups.",
            hint=f"Type --train.global_batch {(prompts + 1) * options.num_generations}, or another --num_generations.",
        )
    return prompts


def check_settings(context: PlanContext, options: GrpoOptions, lengths: Sequence[np.ndarray]) -> None:
    """Refuse what cannot be learned from, before any weights are loaded."""
    positions = getattr(context.source.config.get_text_config(), "max_position_embeddings", None)
    longest = max(int(each.max()) for each in lengths)
    if positions is not None and longest + options.max_completion_length > positions:
        raise ConfigError(
            f"The longest prompt has {longest} tokens, and an answer may have {options.max_completion_length}: "
            f"together more than the {positions} positions of the model.",
            hint=f"Type --max_completion_length {max(1, positions - longest)}, or a shorter --max_length, which leaves "
            "longer prompts out.",
        )
    narrowed = options.top_p < 1 or options.top_k > 0
    if narrowed and (options.num_iterations * options.steps_per_generation > 1 or options.rollout_lag):
        raise ConfigError(
            "Answers drawn with top_p below 1 or with top_k are not those of the policy: importance ratios between the "
            "two are biased, and a round that serves several steps, or lags behind, has such ratios.",
            hint="Leave --top_p and --top_k out.",
        )
    if options.rollout_lag and options.dynamic_sample:
        raise ConfigError(
            "Rounds that lag behind (rollout_lag 1) cannot draw more answers later on: the weights that wrote the "
            "first ones are gone then.",
            hint="Leave --dynamic_sample or --rollout_lag out.",
        )

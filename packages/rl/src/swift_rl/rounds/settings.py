"""Checks of the options of rounds, made before any weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift.errors import ConfigError

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift_rl.draw_options import DrawOptions
    from swift_rl.options import OnlineOptions


def prompts_per_round(global_rows: int, options: OnlineOptions) -> int:
    """Return how many prompts a round answers; refuse rows that groups do not divide."""
    answers = global_rows * options.steps_per_pass
    prompts, rest = divmod(answers, options.num_generations)
    if rest:
        raise ConfigError(
            f"A round has {answers} answers, and groups have {options.num_generations} (num_generations): it takes "
            "whole groups.",
            hint=f"Type --train.global_batch {(prompts + 1) * options.num_generations}, or another --num_generations.",
        )
    return prompts


def check_settings(context: ScheduleContext, options: OnlineOptions, lengths: Sequence[np.ndarray]) -> None:
    """Refuse what cannot be learned from, before any weights are loaded."""
    check_room(context, options, lengths)
    narrowed = options.top_p < 1 or options.top_k > 0
    if narrowed and (options.steps_per_round > 1 or options.rollout_lag):
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


def check_room(context: ScheduleContext, options: DrawOptions, lengths: Sequence[np.ndarray]) -> None:
    """Refuse prompts after which an answer might not fit into the model."""
    positions = getattr(context.source.config.get_text_config(), "max_position_embeddings", None)
    longest = max(int(each.max()) for each in lengths)
    if positions is not None and longest + options.max_completion_length > positions:
        raise ConfigError(
            f"The longest prompt has {longest} tokens, and an answer may have {options.max_completion_length}: "
            f"together more than the {positions} positions of the model.",
            hint=f"Type --max_completion_length {max(1, positions - longest)}, or a shorter --max_length, which leaves "
            "longer prompts out.",
        )

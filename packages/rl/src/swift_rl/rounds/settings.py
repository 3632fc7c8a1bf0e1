"""Checks of the options of rounds, made before any weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift.errors import ConfigError

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift_rl.options import OnlineOptions
    from swift_rl.rollout_options import GenerationOptions


def prompts_per_round(global_rows: int, options: OnlineOptions) -> int:
    """Return the number of prompts of a round; raise if its rows are not whole groups."""
    completions = global_rows * options.steps_per_pass
    prompts, rest = divmod(completions, options.num_generations)
    if rest:
        raise ConfigError(
            f"A round of {completions} completions is not divisible into groups of {options.num_generations} "
            "(num_generations).",
            hint=f"Pass --train.global_batch {(prompts + 1) * options.num_generations}, or another --num_generations.",
        )
    return prompts


def check_settings(context: ScheduleContext, options: OnlineOptions, lengths: Sequence[np.ndarray]) -> None:
    """Raise for settings that cannot be learned with, before any weights are loaded."""
    check_room(context, options, lengths)
    narrowed = options.top_p < 1 or options.top_k > 0
    if narrowed and (options.steps_per_round > 1 or options.rollout_staleness):
        raise ConfigError(
            "top_p and top_k bias the importance ratios of rounds that serve several steps or are stale.",
            hint="Leave --top_p and --top_k out.",
        )
    if options.rollout_staleness and options.dynamic_sample:
        raise ConfigError(
            "rollout_staleness 1 cannot be combined with dynamic_sample: the weights that the first completions were "
            "sampled with no longer exist when more are needed.",
            hint="Leave --dynamic_sample or --rollout_staleness out.",
        )


def check_room(context: ScheduleContext, options: GenerationOptions, lengths: Sequence[np.ndarray]) -> None:
    """Raise for prompts that leave too few positions of the model for a completion."""
    positions = getattr(context.source.config.get_text_config(), "max_position_embeddings", None)
    longest = max(int(each.max()) for each in lengths)
    if positions is not None and longest + options.max_completion_length > positions:
        raise ConfigError(
            f"The longest prompt ({longest} tokens) plus max_completion_length ({options.max_completion_length}) "
            f"exceeds the model's {positions} positions.",
            hint=f"Pass --max_completion_length {max(1, positions - longest)}, or a smaller --max_length to "
            "drop longer prompts.",
        )

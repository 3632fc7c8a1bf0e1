"""The vocabulary of online learning: its flags without a section, and third-party flags of GRPO, PPO and GKD."""

from __future__ import annotations

from collections.abc import Sequence

from swift.contracts import FlagTopic, Vocabulary
from swift.errors import ConfigError

# Tables are imported where they are used: `from swift import NAME` asks each vocabulary for advice only.


class OnlineLearning(Vocabulary):
    """Flags of the objectives `grpo`, `ppo` and `gkd`."""

    def flags(self) -> Sequence[FlagTopic]:
        """Return the flags of online learning."""
        from swift.config import Set
        from swift_rl.flags.settle import settle_online
        from swift_rl.flags.table import FLAGS, LOSSES, OWN_OPTIONS, ROWS, UNSUPPORTED_LOSSES

        losses = {name: (Set("objective.loss_type", name),) for name in LOSSES}
        topic = FlagTopic(
            "Online learning",
            FLAGS,
            ROWS,
            values={"loss_type": {**losses, **UNSUPPORTED_LOSSES}},
            settle=settle_online,
            options=OWN_OPTIONS,
            misplaced=_misplaced,
        )
        return (topic,)


def _misplaced(flag: str, objective: str, own: bool) -> ConfigError:
    from swift_rl.flags.settle import OBJECTIVES

    if own and objective not in OBJECTIVES:
        return ConfigError(
            f"{flag} is an option of online learning (grpo, ppo or gkd), but the objective is {objective}.",
            hint="Type swift rlhf --rlhf_type grpo or ppo to learn from rewards, --rlhf_type gkd to learn from a "
            "teacher, or leave it out.",
        )
    return ConfigError(
        f"{flag} is not an option of the objective {objective}.",
        hint="Type --rlhf_type grpo for rewards, environments of several turns and teachers, or leave it out.",
    )

"""What the command line knows of these objectives: `swift rlhf`, and flags that select one of them."""

from __future__ import annotations

from collections.abc import Sequence

from swift.cli.train import TrainingCommand
from swift.contracts import FlagTopic, Vocabulary


class RlhfCommand(TrainingCommand):
    """`swift rlhf`."""

    name = "rlhf"
    group = "Train"
    summary = "Learn from preferences (dpo, kto, orpo, simpo, cpo, rm, prm), rewards (grpo, ppo) or a teacher (gkd)"
    example = "swift rlhf --rlhf_type dpo --model qwen3-0.6b --dataset pairs.jsonl"


class Objectives(Vocabulary):
    """Which objective a task, a command or a loss selects."""

    def flags(self) -> Sequence[FlagTopic]:
        """Return ms-swift's names of losses that are objectives, and the objectives of tasks."""
        from swift.config import Fallback, Set, Settings

        reranker, generative = Fallback("objective.name", "reranker"), Set("objective.name", "generative_reranker")
        losses: dict[str, Settings] = {
            "pointwise_reranker": (reranker, Set("objective.loss", "pointwise")),
            "listwise_reranker": (reranker, Set("objective.loss", "listwise")),
            "generative_reranker": (generative, Set("objective.loss", "pointwise")),
            "listwise_generative_reranker": (generative, Set("objective.loss", "listwise")),
        }
        trained_by = {"rlhf": "dpo", "reward": "rm"}
        return (FlagTopic("Preferences and scores", values={"loss_type": losses}, trained_by=trained_by),)

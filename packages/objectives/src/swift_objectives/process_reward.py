"""Learning to say of each step of an answer whether it is right: a process reward model.

The loss is a mean over the marked steps of the *global* batch, so how the answers are divided into micro-batches or
among processes changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from swift.config.sections import Section
from swift.contracts import LossSums, ModelView, Need
from swift.objectives.base import PerTokenObjective, viewed
from swift_objectives.encodings.steps import STEP_LABELS, StepEncoding

if TYPE_CHECKING:
    import torch

    from swift.data.batch import MicroBatch


class ProcessRewardOptions(Section):
    """Options of `prm`."""

    step_separator: Annotated[str, Field(min_length=1)] = Field(
        "\n",
        description="Separator after each step of a completion; a step is scored at the last token of the separator",
    )
    train_on_last_step_only: bool = Field(
        False, description="Train only on the label of the last step of each completion"
    )


class ProcessReward(PerTokenObjective[ProcessRewardOptions]):
    """Binary cross entropy at the end of each step, as in "Let's verify step by step" (arXiv 2305.20050).

    The model returns one number per step, of which the probability that the step is right is the sigmoid. That is
    the softmax of TRL's two numbers, of which only the difference counts.
    """

    options_model = ProcessRewardOptions
    name = "prm"
    returns = "steps"
    command = "rlhf"
    needs = frozenset({Need.VALUES})
    task = "value"
    num_labels = 1

    def __init__(self, options: ProcessRewardOptions) -> None:
        super().__init__(options)
        self.encoding = StepEncoding(options.step_separator, last_only=options.train_on_last_step_only)

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sum over the marked steps of the micro-batch."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        marked = batch.weights > 0
        outputs = viewed(view.values, Need.VALUES)[marked]
        labels, counts = batch.token_values[STEP_LABELS][marked], batch.weights[marked]
        losses = binary_cross_entropy_with_logits(outputs, labels, reduction="none")
        right, predicted = labels > 0.5, outputs.detach() > 0
        scores = outputs.detach().sigmoid()
        metrics: dict[str, tuple[torch.Tensor, torch.Tensor | float]] = {
            "step_accuracy": ((counts * (predicted == right)).sum(), counts.sum()),
            "score_of_right_steps": ((counts * scores * right).sum(), (counts * right).sum()),
            "score_of_wrong_steps": ((counts * scores * ~right).sum(), (counts * ~right).sum()),
        }
        return LossSums(loss=(losses * counts).sum(), metrics=metrics)

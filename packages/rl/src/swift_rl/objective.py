"""The objective `grpo`: a loss over completions that the model in training samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from swift.contracts import LossSums, ModelView, Need
from swift.data.encodings import ConversationEncoder, EncodedRow, Encoding, ReadRow, RowReader, Sample, Steps
from swift.data.samples import Encoded
from swift.objectives.base import BaseObjective, viewed
from swift_rl.options import GrpoOptions

if TYPE_CHECKING:
    import torch

    from swift.config.sections import Config
    from swift.contracts import BatchSchedule, ModelRole, RoundWork, ScheduleContext
    from swift.data.batch import MicroBatch
    from swift.data.samples import SampleFacts
    from swift_rl.losses import TokenLosses


POLICY_DEFAULTS: Mapping[str, tuple[Any, str]] = {
    "tuner.dropout": (0.0, "with dropout the policy that learns would differ from the one that sampled"),
    "optim.schedule": ("constant", "later rewards should count as much as the first"),
    "optim.warmup_ratio": (0.0, "warm-up begins with learning rate 0, which would waste a round"),
}
"""Values of other sections, for objectives that learn from the model's own completions."""


class PromptEncoding(Encoding):
    """Samples of one segment: the prompt's tokens, none of which is learned."""

    name = "prompt"
    segment_names = ("prompt",)
    keeps_columns = True
    columns = "messages; prompt, query, instruction or question; any others are for rewards"

    def read(self, row: RowReader) -> Sample:
        """Return the conversation up to the last question, without a response after it."""
        return Sample(row.prompt())

    def encode(self, row: ReadRow, encoder: ConversationEncoder) -> Steps[EncodedRow]:
        """Return the prompt as tokens."""
        segment = yield from encoder.prompt(row.sample.conversation, row.location)
        return EncodedRow((Encoded(0, (replace(segment, weights=segment.weights * 0),)),))


class Grpo(BaseObjective[GrpoOptions]):
    """Policy gradients whose baseline is the group of completions to the same prompt.

    The schedule gives each token its numbers: `advantages`, and where they are needed `old_logps` (the policy at the
    beginning of the round; without them the ratio is exactly 1), `ref_logps` (the reference) and `is_weights` (what
    corrects for the engine). A token is learned from where its weight is 1.
    """

    options_model = GrpoOptions
    name = "grpo"
    command = "rlhf"
    encoding = PromptEncoding()
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = POLICY_DEFAULTS

    def __init__(self, options: GrpoOptions) -> None:
        super().__init__(options)
        self.needs = frozenset({Need.TOKEN_LOGPS})
        if options.log_entropy:
            self.needs |= {Need.TOKEN_ENTROPY}

    def check_config(self, config: Any) -> None:
        """Raise for options of a teacher that contradict each other."""
        self.options.check_teacher()

    def roles(self, config: Config) -> list[ModelRole]:
        """Return the reference, if it is a model of its own, and the teacher, if the run holds it as a role."""
        from swift_rl.roles import reference_roles, teacher_roles

        return [*reference_roles(config, self.options), *teacher_roles(config, self.options)]

    def rounds(self, config: Config) -> RoundWork:
        """Return the work of rounds besides the policy's steps."""
        from swift_rl import roles

        options = self.options
        work = roles.work_of_rounds(
            config,
            options,
            scores=options.evaluates_policy or roles.corrects(config, options),
            roles=(roles.TEACHER,) if options.teacher_as_role else (),
        )
        return replace(work, engines=(*work.engines, *roles.teaching(options)))

    def batch_schedule(self, context: ScheduleContext) -> BatchSchedule:
        """Return the schedule of rounds of sampled completions."""
        from swift_rl.rounds.group_rounds import GroupRounds

        return GroupRounds(context, self.options)

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """Return the loss's divisor: tokens, completions, or completions times their maximum length."""
        learned = [sample.loss_weight for sample in samples if sample.loss_weight > 0]
        if self.options.mean_over == "tokens":
            return float(sum(learned))
        rows = float(len(learned))
        return rows * self.options.max_completion_length if self.options.mean_over == "length" else rows

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sum over the micro-batch, and metrics of how far the policy has moved."""
        from swift_rl import kl, losses

        options, values = self.options, batch.token_values
        logps = viewed(view.token_logps, Need.TOKEN_LOGPS)
        advantages = values["advantages"]
        old_logps = values.get("old_logps", logps.detach())
        log_ratio = losses.log_ratios(logps, old_logps, batch, options)
        policy = losses.policy_losses(logps, log_ratio, advantages, options)
        each = policy.loss
        if options.off_policy_sequence_mask_delta is not None:
            most = options.off_policy_sequence_mask_delta
            each = each * losses.on_policy_enough(logps, old_logps, advantages, batch, most)
        if "is_weights" in values:
            each = each * values["is_weights"]
        metrics = movement(policy, logps.detach() - old_logps)
        if "rollout_logps" in values and "old_logps" not in values:
            metrics["mismatch/mean"] = (logps.detach() - values["rollout_logps"]).abs()
        if options.kl_in_loss:
            apart = kl.divergence(logps, values["ref_logps"], options)
            metrics["kl"] = apart.detach()
            each = each + options.beta * (apart * log_ratio.exp() if options.use_bias_correction_kl else apart)
        if options.log_entropy:
            metrics["entropy"] = viewed(view.token_entropy, Need.TOKEN_ENTROPY).detach()
        counts = (batch.weights > 0).to(each.dtype)
        loss = (counted(counts, each) * self._token_weights(batch, counts)).sum()
        return LossSums(loss=loss, metrics=token_sums(counts, metrics))

    def _token_weights(self, batch: MicroBatch, counts: torch.Tensor) -> torch.Tensor:
        """Return the weight of each token in its completion."""
        if self.options.mean_over != "completions":
            return counts
        return counts / batch.segment_sum(counts).clamp(min=1)[batch.segment_ids.clamp(min=0)]


def counted(counts: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return values where a token counts, else 0, also instead of nan."""
    return values.masked_fill(counts == 0, 0.0)


def token_sums(
    tokens: torch.Tensor, values: Mapping[str, torch.Tensor]
) -> dict[str, tuple[torch.Tensor, torch.Tensor | float]]:
    """Return metrics of every token as the sums that `LossSums` takes."""
    return {name: (counted(tokens, value).sum(), tokens.sum()) for name, value in values.items()}


def movement(policy: TokenLosses, log_ratio: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return metrics of every token: how far the policy is from the one that sampled it."""
    return {
        "ratio": policy.ratio,
        "clip_ratio_low": policy.clipped_low.to(log_ratio.dtype),
        "clip_ratio_high": policy.clipped_high.to(log_ratio.dtype),
        "approx_kl": log_ratio.expm1() - log_ratio,
    }

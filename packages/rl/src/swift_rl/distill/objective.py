"""The objective `gkd`: the student learns the teacher's distribution at each token of a completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from swift.contracts import LossSums, ModelView, Need
from swift.objectives.base import PerTokenObjective, viewed
from swift_rl.distill.options import GkdOptions
from swift_rl.objective import PromptEncoding

if TYPE_CHECKING:
    import torch

    from swift.config.sections import Config
    from swift.contracts import BatchSchedule, ModelRole, RoundWork, ScheduleContext
    from swift.data.batch import MicroBatch
    from swift.data.encodings import Encoding


class Gkd(PerTokenObjective[GkdOptions]):
    """Generalized knowledge distillation (arXiv 2306.13649).

    The schedule gives each token `candidates` and the teacher's log-probabilities of them, `teacher_logps` [tokens, K].
    With `sft_alpha` it also gives `is_taught`, 1 if the completion is not the student's own.
    """

    options_model = GkdOptions
    name = "gkd"
    command = "rlhf"
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = {
        "tuner.dropout": (0.0, "with dropout the student that learns would differ from the one that sampled"),
    }

    def __init__(self, options: GkdOptions) -> None:
        super().__init__(options)
        self.needs = frozenset({Need.CANDIDATE_LOGPS})
        if options.sft_alpha:
            self.needs |= {Need.TOKEN_LOGPS}
        self.encoding: str | Encoding = PromptEncoding() if options.reads_prompts_alone else "chat"

    def check_config(self, config: Any) -> None:
        """Raise for contradicting options, and without a teacher."""
        self.options.check()

    def roles(self, config: Config) -> list[ModelRole]:
        """Return the teacher, if the run holds it as a role."""
        from swift_rl.roles import teacher_roles

        return teacher_roles(config, self.options)

    def rounds(self, config: Config) -> RoundWork:
        """Return the work of rounds besides the student's steps."""
        from swift_rl.roles import work_of_distillation

        return work_of_distillation(self.options)

    def batch_schedule(self, context: ScheduleContext) -> BatchSchedule:
        """Return the schedule: over the data, or in rounds of sampled completions."""
        from swift_rl.distill.schedule import TaughtData, TaughtRounds

        in_rounds = self.options.samples_student or self.options.seq_kd
        return (TaughtRounds if in_rounds else TaughtData)(context, self.options)

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sum of the divergences at the learned tokens of the micro-batch."""
        from swift_rl.distill import divergence

        learned = batch.weights > 0
        weights = batch.weights[learned]
        teacher = batch.token_values["teacher_logps"][learned]
        student = viewed(view.candidate_logps, Need.CANDIDATE_LOGPS)[learned]
        rest = viewed(view.candidate_rest, Need.CANDIDATE_LOGPS)[learned]
        theirs, ours = divergence.outcomes(teacher, student, rest)
        found = divergence.divergences(theirs, ours, self.options.beta)
        loss = (found.learned * weights).sum()
        values_by_name = {
            "divergence": found.learned.detach(),
            "kl": found.kl,
            "reverse_kl": found.reverse_kl,
            "teacher_mass": teacher.exp().sum(-1),
        }
        tokens = weights.sum()
        metrics: dict[str, tuple[torch.Tensor, torch.Tensor | float]] = {
            name: ((values * weights).sum(), tokens) for name, values in values_by_name.items()
        }
        if self.options.sft_alpha:
            taught = batch.token_values["is_taught"] * batch.weights
            surprise = -(viewed(view.token_logps, Need.TOKEN_LOGPS) * taught).sum()
            loss = loss + self.options.sft_alpha * surprise
            metrics["cross_entropy"] = (surprise.detach(), taught.sum())
        return LossSums(loss=loss, metrics=metrics)

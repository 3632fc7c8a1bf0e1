"""Work of rounds, as planners count it: `Objective.rounds` of this package's objectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from swift.contracts import EngineModel, RoundWork
from swift_rl.correction import mode_of
from swift_rl.held import IN_PROCESS, REFERENCE, TEACHER, is_apart
from swift_rl.reward_options import is_address

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift_rl.distill.options import GkdOptions, TeacherOptions
    from swift_rl.draw_options import DrawOptions
    from swift_rl.options import OnlineOptions
    from swift_rl.policy_options import CorrectionOptions


def work_of_rounds(
    config: Config, options: OnlineOptions, *, scores: bool, reference: bool, roles: Iterable[str] = ()
) -> RoundWork:
    """Return the work of an objective that learns from scored answers of its own.

    `scores`: whether the policy is asked about the answers before it learns from them; `reference`: whether something
    is compared with the model as it was; `roles` are asked about them once a round.
    """
    often = 1 / options.passes
    asked = dict.fromkeys(roles, often)
    scored = often if scores else 0.0
    if reference and is_apart(config):
        asked[REFERENCE] = often
    elif reference:
        scored += often
    judges = [each for each in options.reward_model if not is_address(each)]
    return RoundWork(
        answer_tokens=options.max_completion_length,
        drawn=often,
        drawn_here=_here(options),
        at_once=options.rollout_batch_size,
        scored=scored,
        asked=asked,
        engines=(*_drawing(options), *(EngineModel("reward model", each, everywhere=False) for each in judges)),
    )


def work_of_distillation(options: GkdOptions) -> RoundWork:
    """Return the work of a student: answers of its own in some rounds, and a teacher that is asked in all."""
    asks = options.asks_student
    return RoundWork(
        answer_tokens=options.max_completion_length if options.reads_prompts_alone else 0,
        drawn=options.lmbda,
        drawn_here=_here(options),
        at_once=options.rollout_batch_size,
        asked={TEACHER: 1.0} if options.teacher_as_role else {},
        engines=(*(_drawing(options) if asks else ()), *teaching(options)),
    )


def teaching(options: TeacherOptions) -> Iterator[EngineModel]:
    """Yield the teacher, where an engine of the run holds it."""
    if options.teacher_model is not None and options.teacher_model_server is None and not options.teacher_as_role:
        yield EngineModel("teacher", options.teacher_model, everywhere=options.teacher_engine == IN_PROCESS)


def corrects(config: Config, options: CorrectionOptions, drawing: OnlineOptions) -> bool:
    """Return whether tokens are weighed by policy against engine, on a device whose own precision is not float32."""
    alike = drawing.rollout_engine == IN_PROCESS and config.model.dtype == "float32" and not drawing.rollout_lag
    return mode_of(options, third_party=not alike) != "off"


def _here(options: DrawOptions) -> bool:
    return not is_address(options.rollout_engine)


def _drawing(options: DrawOptions) -> Iterator[EngineModel]:
    if _here(options):
        yield EngineModel("engine that answers", everywhere=options.rollout_engine == IN_PROCESS)

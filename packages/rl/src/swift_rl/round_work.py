"""The work of rounds for planners: `Objective.rounds` of this package's objectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from swift.contracts import EngineModel, RoundWork
from swift_rl.correction import mode_of
from swift_rl.reward_options import is_address
from swift_rl.roles import IN_PROCESS, REFERENCE, TEACHER, is_apart

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift_rl.distill.options import GkdOptions, TeacherOptions
    from swift_rl.options import OnlineOptions
    from swift_rl.policy_options import CorrectionOptions
    from swift_rl.rollout_options import GenerationOptions


def work_of_rounds(
    config: Config, options: OnlineOptions, *, scores: bool, reference: bool, roles: Iterable[str] = ()
) -> RoundWork:
    """Return the work of an objective that learns from scored completions of its own.

    `scores`: whether the policy is evaluated on the completions before it learns from them; `reference`: whether the
    reference is; `roles`: other models that are, once a round.
    """
    often = 1 / options.passes
    forwards = dict.fromkeys(roles, often)
    scored = often if scores else 0.0
    if reference and is_apart(config):
        forwards[REFERENCE] = often
    elif reference:
        scored += often
    judges = [each for each in options.reward_model if not is_address(each)]
    return RoundWork(
        completion_tokens=options.max_completion_length,
        completions=often,
        sampled_here=_here(options),
        at_once=options.rollout_batch_size,
        scored=scored,
        role_forwards=forwards,
        engines=(*_sampling_engine(options), *(EngineModel("reward model", each, everywhere=False) for each in judges)),
    )


def work_of_distillation(options: GkdOptions) -> RoundWork:
    """Return the work of a student: its own completions in some rounds, and a teacher's scores in all."""
    samples = options.samples_student
    return RoundWork(
        completion_tokens=options.max_completion_length if options.reads_prompts_alone else 0,
        completions=options.lmbda,
        sampled_here=_here(options),
        at_once=options.rollout_batch_size,
        role_forwards={TEACHER: 1.0} if options.teacher_as_role else {},
        engines=(*(_sampling_engine(options) if samples else ()), *teaching(options)),
    )


def teaching(options: TeacherOptions) -> Iterator[EngineModel]:
    """Yield the teacher, if an engine of the run holds it."""
    if options.teacher_model is not None and options.teacher_model_server is None and not options.teacher_as_role:
        yield EngineModel("teacher", options.teacher_model, everywhere=options.teacher_engine == IN_PROCESS)


def corrects(config: Config, options: CorrectionOptions, sampling: OnlineOptions) -> bool:
    """Return whether tokens get importance weights, on a device whose own precision is not float32."""
    alike = sampling.rollout_engine == IN_PROCESS and config.model.dtype == "float32" and not sampling.rollout_staleness
    return mode_of(options, off_policy=not alike) != "off"


def _here(options: GenerationOptions) -> bool:
    return not is_address(options.rollout_engine)


def _sampling_engine(options: GenerationOptions) -> Iterator[EngineModel]:
    if _here(options):
        yield EngineModel("rollout engine", everywhere=options.rollout_engine == IN_PROCESS)

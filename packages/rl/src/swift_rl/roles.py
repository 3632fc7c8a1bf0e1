"""The models of a run besides its policy, as roles or in engines, and their work for planners. No torch is imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from swift.contracts import EngineModel, ModelRole, RoundWork
from swift.errors import ConfigError
from swift.plugins.tuner import ends_when_off, tuner_of
from swift_rl.correction import mode_of
from swift_rl.reward_options import is_address

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift_rl.algorithm_options import KlOptions
    from swift_rl.distill.options import GkdOptions, TeacherOptions
    from swift_rl.options import OnlineOptions
    from swift_rl.rollout_options import GenerationOptions


IN_PROCESS = "transformers"
"""The engine of which every process has its own; others generate for all processes."""
REFERENCE = "reference"
"""The role of the model before training."""
TEACHER = "teacher"
"""The role of a teacher that is not in an engine."""


def is_apart(config: Config) -> bool:
    """Return whether the reference is a model of its own, as other weights than new adapters are trained."""
    return not ends_when_off(config.tuner)


def reference_roles(config: Config, options: KlOptions) -> list[ModelRole]:
    """Return the role of the reference, if there is one and it is a model of its own: frozen, or following the policy.

    The reference of a run that continues from an adapter has that adapter at its beginning; that of a quantized model
    is quantized too.
    """
    if options.sync_ref_model:
        _check_follows(config)
    if not options.has_reference or not is_apart(config):
        return []
    begun = config.tuner if config.tuner.adapter is not None or config.tuner.quantize != "none" else None
    model = config.model.model_copy(update={"value_head": False})
    follows = options.sync_ref_model  # which an inference engine instead of the role could not
    return [ModelRole(REFERENCE, model, tuner=begun, trained=False, follows=follows, optional=not follows)]


def _check_follows(config: Config) -> None:
    """Raise `ConfigError` if the reference has no weights that can follow the policy's."""
    if not is_apart(config):
        raise ConfigError(
            "sync_ref_model has no effect with new adapters: the reference is the policy with adapters switched off.",
            hint="Pass --train_type full, or leave --sync_ref_model out.",
        )
    if tuner_of(config.tuner).adapter:
        raise ConfigError(
            "sync_ref_model cannot mix adapters: mixing their matrices does not mix the models.",
            hint="Pass --train_type full, or leave --sync_ref_model out.",
        )


def teacher_roles(config: Config, options: TeacherOptions) -> list[ModelRole]:
    """Return the role of the teacher, with `teacher_as_role`."""
    if not options.teacher_as_role:
        return []
    own = {"path": options.teacher_model, "revision": None, "random_weights": False, "value_head": False}
    return [ModelRole(TEACHER, config.model.model_copy(update=own), trained=False)]


def work_of_rounds(config: Config, options: OnlineOptions, *, scores: bool, roles: Iterable[str] = ()) -> RoundWork:
    """Return the work of an objective that learns from scored completions of its own.

    `scores`: whether the policy is evaluated on the completions before it learns from them; `roles`: models besides
    the reference that are, once a round.
    """
    often = 1 / options.passes
    forwards = dict.fromkeys(roles, often)
    scored = often if scores else 0.0
    if options.has_reference and is_apart(config):
        forwards[REFERENCE] = often
    elif options.has_reference:
        scored += often
    judges = [each for each in options.reward_model if not is_address(each)]
    return RoundWork(
        completion_tokens=options.max_completion_length,
        completions=often,
        sampled_here=not is_address(options.rollout_engine),
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
        sampled_here=not is_address(options.rollout_engine),
        at_once=options.rollout_batch_size,
        role_forwards={TEACHER: 1.0} if options.teacher_as_role else {},
        engines=(*(_sampling_engine(options) if samples else ()), *teaching(options)),
    )


def teaching(options: TeacherOptions) -> Iterator[EngineModel]:
    """Yield the teacher, if an engine of the run holds it."""
    if options.teacher_model is not None and options.teacher_model_server is None and not options.teacher_as_role:
        yield EngineModel("teacher", options.teacher_model, everywhere=options.teacher_engine == IN_PROCESS)


def corrects(config: Config, options: OnlineOptions) -> bool:
    """Return whether tokens get importance weights, on a device whose own precision is not float32."""
    alike = options.rollout_engine == IN_PROCESS and config.model.dtype == "float32" and not options.rollout_staleness
    return mode_of(options, off_policy=not alike) != "off"


def _sampling_engine(options: GenerationOptions) -> Iterator[EngineModel]:
    if not is_address(options.rollout_engine):
        yield EngineModel("rollout engine", everywhere=options.rollout_engine == IN_PROCESS)

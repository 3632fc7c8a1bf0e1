"""The models that a run holds as roles besides its policy: reference and teacher. Does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.contracts import ModelRole
from swift.errors import ConfigError
from swift.tuners.selected import ends_when_off, tuner_of

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift_rl.distill.options import TeacherOptions
    from swift_rl.policy_options import KlOptions

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
    """Return the role of the reference, if it is a model of its own: frozen, or following the policy.

    The reference of a run that continues from an adapter has that adapter at its beginning; that of a quantized model
    is quantized too.
    """
    if options.sync_ref_model:
        _check_follows(config)
    if not is_apart(config):
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

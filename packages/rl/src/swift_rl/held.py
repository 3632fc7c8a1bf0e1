"""Models that a run of rounds holds besides its policy: reference and teacher. Does not import torch."""

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
"""The engine of which every process has its own; others answer all prompts of the run."""
REFERENCE = "reference"
"""The role of the model as it was before training."""
TEACHER = "teacher"
"""The role of a teacher that the run holds."""


def is_apart(config: Config) -> bool:
    """Return whether the reference is a model of its own: other weights are trained than new adapters alone."""
    return not ends_when_off(config.tuner)


def reference_roles(config: Config, options: KlOptions) -> list[ModelRole]:
    """Return the role that the reference is, where it is a model of its own: frozen, or following the policy.

    A run that continues from an adapter has that adapter, as it began, for its reference; one on weights of few bits
    has these.
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
    """Raise `ConfigError` where there are no weights that could follow those of the policy."""
    if not is_apart(config):
        raise ConfigError(
            "sync_ref_model moves the weights of the reference, and where new adapters are trained the reference is "
            "the policy's own model with them switched off: it has no weights that could move.",
            hint="Type --train_type full, or leave --sync_ref_model out.",
        )
    if tuner_of(config.tuner).adapter:
        raise ConfigError(
            "sync_ref_model mixes weights, and a mixture of the matrices of two adapters is not the mixture of the "
            "models that they make.",
            hint="Type --train_type full, or leave --sync_ref_model out.",
        )


def teacher_roles(config: Config, options: TeacherOptions) -> list[ModelRole]:
    """Return the role that a teacher is, where it is asked as one."""
    if not options.teacher_as_role:
        return []
    own = {"path": options.teacher_model, "revision": None, "random_weights": False, "value_head": False}
    return [ModelRole(TEACHER, config.model.model_copy(update=own), trained=False)]

"""The contract of roles: what a run trains or asks besides its policy."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swift.config.sections import Config, ModelSection, OptimSection, TunerSection

POLICY = "policy"
"""The role of the model that the configuration describes: what is exported, and what a checkpoint's bare names are."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class ModelRole:
    """One more model of a run: a critic that is trained, a teacher that is asked.

    Core opens it after the policy with the same hooks, called once more with a `Run` of its own.

    - `name`: 'critic'. Owns the names of its tensors in checkpoints: `critic/model.<Hugging Face name>`.
    - `model`: Where its weights come from.
    - `tuner`: None trains all weights.
    - `optim`: None is the policy's.
    - `schedule`: Learning rate by the role's own steps; None makes it of `optim`, over as many steps as the policy has.
    - `trained`: A role that is not trained is asked only: it is not saved, and reads its weights again on a resume.
    - `follows`: Whether a role that is not trained moves towards the policy (`OpenRole.follow`): it is saved then. It
      has the policy's model, and all of its weights.
    - `optional`: Whether a run goes without it where its backend holds too few models at once.
    """

    name: str
    model: ModelSection
    tuner: TunerSection | None = None
    optim: OptimSection | None = None
    schedule: Callable[[int], float] | None = None
    trained: bool = True
    follows: bool = False
    optional: bool = False

    def __post_init__(self) -> None:
        if self.name == POLICY or not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r} cannot be the name of a role: lower-case letters, digits and _, not policy"
            )

    def config(self, policy: Config) -> Config:
        """Return the configuration of this role: that of the policy with the role's own sections."""
        tuner = self.tuner or type(policy.tuner)(kind="full")
        return policy.model_copy(update={"model": self.model, "tuner": tuner, "optim": self.optim or policy.optim})


def fitting_roles(roles: Sequence[ModelRole], most: int) -> list[ModelRole]:
    """Return the roles that a run holds: optional ones only as far as its backend holds `most` models altogether."""
    spare = most - 1 - sum(not role.optional for role in roles)
    kept = []
    for role in roles:
        if not role.optional or spare > 0:
            kept.append(role)
            spare -= role.optional
    return kept

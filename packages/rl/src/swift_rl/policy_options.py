"""Options that policy gradients share: the divergence from a reference, and the correction for the engine."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, model_validator

from swift.config.sections import Section

KlEstimator = Literal["k1", "k2", "k3"]
CorrectionMode = Literal["auto", "off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


class KlOptions(Section):
    """How the KL divergence of a token from the reference is estimated, and which model that is."""

    _kl_strength: ClassVar[str] = "beta"
    """The option that multiplies the divergence."""

    kl_estimator: KlEstimator | None = Field(
        None, description="Estimator of the KL divergence of a token; default: k3 in the loss, k1 in the reward"
    )
    kl_log_ratio_clamp: PositiveFloat | None = Field(None, description="Clamp the log-ratio of the KL term to ± this")
    kl_clamp: PositiveFloat | None = Field(None, description="Clamp the KL term of a token to ± this")

    sync_ref_model: bool = Field(
        False,
        description="Let the reference follow the policy: mix the policy into it every ref_model_sync_steps",
    )
    ref_model_mixup_alpha: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.6, description="Fraction of the policy in that mixture"
    )
    ref_model_sync_steps: Annotated[int, Field(ge=1)] = Field(
        512, description="Optimizer steps after which the reference follows"
    )

    @model_validator(mode="after")
    def _nothing_follows_in_vain(self) -> KlOptions:
        strength = self._kl_strength
        if self.sync_ref_model and not getattr(self, strength):
            raise ValueError(
                f"sync_ref_model needs a reference, but {strength} is 0: leave it out, or choose a {strength} above 0"
            )
        for name in ("ref_model_mixup_alpha", "ref_model_sync_steps"):
            if not self.sync_ref_model and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} needs sync_ref_model true")
        return self

    @property
    def kl_kind(self) -> KlEstimator:
        """Estimator of the KL divergence."""
        return self.kl_estimator or "k1"


class CorrectionOptions(Section):
    """Importance weights that correct the train-inference mismatch."""

    rollout_importance_sampling_mode: CorrectionMode = Field(
        "auto",
        description="Importance weights against the train-inference mismatch; auto: token_truncate for engines other "
        "than the one in this process, else off",
    )
    rollout_importance_sampling_threshold: PositiveFloat = Field(2.0, description="Largest weight of that correction")
    rollout_importance_sampling_min: PositiveFloat | None = Field(
        None, description="Smallest weight of that correction"
    )
    rollout_importance_sampling_aggregate: Literal["product", "mean"] = Field(
        "product", description="Weight of a sequence: the product over its tokens, or their geometric mean"
    )

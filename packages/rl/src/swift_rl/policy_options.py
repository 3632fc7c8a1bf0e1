"""Options that policy gradients share: the divergence from a reference, and the correction for the engine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from swift.config.sections import Section

KlEstimator = Literal["k1", "k2", "k3"]
CorrectionMode = Literal["auto", "off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


class KlOptions(Section):
    """How the KL divergence of a token from the reference is estimated."""

    kl_estimator: KlEstimator | None = Field(
        None, description="Estimator of the KL divergence of a token; default: k3 in the loss, k1 in the reward"
    )
    kl_log_ratio_clamp: PositiveFloat | None = Field(None, description="Clamp the log-ratio of the KL term to ± this")
    kl_clamp: PositiveFloat | None = Field(None, description="Clamp the KL term of a token to ± this")

    @property
    def kl_kind(self) -> KlEstimator:
        """Estimator of the KL divergence."""
        return self.kl_estimator or "k1"


class CorrectionOptions(Section):
    """How answers are weighed where the engine that drew them computes otherwise than the model in training."""

    rollout_importance_sampling_mode: CorrectionMode = Field(
        "auto",
        description="Correction of what the engine says otherwise than the trainer; auto: token_truncate for engines "
        "other than the one in this process, else off",
    )
    rollout_importance_sampling_threshold: PositiveFloat = Field(2.0, description="Largest weight of that correction")
    rollout_importance_sampling_min: PositiveFloat | None = Field(
        None, description="Smallest weight of that correction"
    )
    rollout_importance_sampling_aggregate: Literal["product", "mean"] = Field(
        "product", description="Weight of a sequence: the product over its tokens, or their geometric mean"
    )

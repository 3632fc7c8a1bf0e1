"""Cases of the conformance kit for backends: `grpo`, `ppo` and `gkd` on stored rounds."""

from __future__ import annotations

from typing import Any

from swift.contracts import Need
from swift_rl.testing import reference
from swift_rl.testing.objectives import StoredGkd, StoredGrpo, StoredPpo
from swift_testing import CASES as KIT
from swift_testing import Case

__all__ = ["CASES"]


_UNEVALUATED: dict[str, Any] = {
    "train.eval_steps": None,
    "train.eval_strategy": "no",
    "optim.schedule": "constant",
    "optim.warmup_steps": 0,
}
_GRPO: dict[str, Any] = {
    **_UNEVALUATED,
    "objective.name": StoredGrpo.name,
    "objective.beta": reference.BETA,
    "objective.epsilon": reference.LOW,
    "objective.epsilon_high": reference.HIGH,
    "objective.delta": reference.DUAL,
    "objective.off_policy_sequence_mask_delta": reference.DRIFT,
}
_PPO: dict[str, Any] = {
    **_UNEVALUATED,
    "objective.name": StoredPpo.name,
    "objective.kl_coef": 0.0,
    "objective.cliprange": reference.CLIP,
    "objective.cliprange_value": reference.CLIP_VALUES,
    "objective.vf_coef": reference.VALUE_FACTOR,
    "objective.critic_lr": reference.CRITIC_RATE,
}
_SHARED: dict[str, Any] = {**_PPO, "objective.critic": "shared"}
del _SHARED["objective.critic_lr"]
_GKD: dict[str, Any] = {**_UNEVALUATED, "objective.name": StoredGkd.name, "objective.beta": reference.MIXTURE}

CASES = (
    Case(
        "grpo on stored rounds",
        _GRPO,
        global_batch=12,
        accumulation=3,
        objectives=(StoredGrpo,),
        reference=reference.grpo,
    ),
    Case(
        "ppo on fixed rows",
        _PPO,
        needs=frozenset({Need.TOKEN_LOGPS, Need.VALUES}),
        objectives=(StoredPpo,),
        reference=reference.ppo,
    ),
    Case(
        "ppo with a shared critic",
        _SHARED,
        needs=frozenset({Need.TOKEN_LOGPS, Need.VALUES}),
        objectives=(StoredPpo,),
        reference=reference.ppo_shared,
    ),
    Case(
        "gkd on fixed candidates",
        _GKD,
        KIT[0].rows[:13],
        global_batch=4,  # in the last batch of an epoch a process has nothing to learn
        needs=frozenset({Need.CANDIDATE_LOGPS}),
        objectives=(StoredGkd,),
        reference=reference.gkd,
    ),
)

"""`--like`: the constants by which other libraries compute under the same names, each by its formula."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from stored_completions import completion, grpo, summed

from swift_rl import advantages, correction, kl
from swift_rl.algorithm_options import AlgorithmOptions
from swift_rl.presets import PRESETS

LIBRARIES = ("trl", "verl", "openrlhf", "nemo")
REWARDS = np.array([0.0, 1.0, 0.001, 0.25])


def options(like: str, **given: Any) -> AlgorithmOptions:
    return AlgorithmOptions.model_validate({"like": like, **given})


def advantages_of(like: str, rewards: np.ndarray = REWARDS, **given: Any) -> list[float]:
    count = len(rewards)
    made = advantages.estimate(rewards[:, None], np.zeros(count, int), np.arange(1, count + 1), options(like, **given))
    return [float(each[0]) for each in made.tokens]


@pytest.mark.parametrize(("like", "eps"), [("trl", 1e-4), ("verl", 1e-6), ("openrlhf", 1e-9)])
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e-7])
def test_std_epsilon_constant_is_applied(like: str, eps: float, scale: float) -> None:
    """Visible where rewards hardly differ."""
    rewards = REWARDS * scale
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + eps)
    assert advantages_of(like, rewards) == pytest.approx(expected.tolist(), rel=1e-9)


def test_nemo_preset_uses_leave_one_out_baseline() -> None:
    """NeMo compares with the other completions and divides only where they differ."""
    expected = []
    for index, reward in enumerate(REWARDS):
        others = np.delete(REWARDS, index)
        expected.append((reward - others.mean()) / (others.std(ddof=1) + 1e-6))
    assert advantages_of("nemo") == pytest.approx(expected)
    winner = advantages_of("nemo", np.array([0.0, 0.0, 0.35, 0.0]))
    assert winner[2] == pytest.approx(0.35)


@pytest.mark.parametrize(
    ("like", "estimator", "expected"),
    [
        ("verl", "grpo", 0.8 / (1 + 1e-6)), ("verl", "rloo", 0.8), ("verl", "opo", 0.8),
        ("trl", "grpo", 0.0), ("openrlhf", "grpo", 0.0), ("nemo", "grpo", 0.0),
    ],
)  # fmt: skip
def test_single_completion_group_has_zero_advantage(like: str, estimator: str, expected: float) -> None:
    assert advantages_of(like, np.array([0.8]), advantage_estimator=estimator) == pytest.approx([expected])


@pytest.mark.parametrize(("like", "ddof"), [("verl", 1), ("openrlhf", 0), ("nemo", 0)])
def test_the_variance_of_reinforce_plus_plus(like: str, ddof: int) -> None:
    tokens = np.repeat(REWARDS, [1, 2, 3, 4])
    expected = (REWARDS - tokens.mean()) / math.sqrt(tokens.var(ddof=ddof) + 1e-8)
    assert advantages_of(like, advantage_estimator="reinforce_plus_plus") == pytest.approx(expected.tolist(), rel=1e-6)


@pytest.mark.parametrize(
    ("like", "estimator", "log_limit", "limit"),
    [
        ("trl", "k3", None, None), ("verl", "k3", 20, 10), ("verl", "k1", None, None), ("verl", "k2", None, None),
        ("openrlhf", "k1", None, 10), ("openrlhf", "k2", None, 10), ("openrlhf", "k3", None, 10),
        ("nemo", "k1", 20, 10), ("nemo", "k2", 20, 10), ("nemo", "k3", 20, 10),
    ],
)  # fmt: skip
def test_the_bounds_of_the_divergence(like: str, estimator: str, log_limit: float | None, limit: float | None) -> None:
    logps = torch.tensor([-1.0, -30.0, -2.0, -0.1], dtype=torch.float64)
    reference = torch.tensor([-26.0, -1.0, -2.5, -4.0], dtype=torch.float64)
    q = reference - logps
    if log_limit is not None:
        q = q.clamp(-log_limit, log_limit)
    expected = {"k1": -q, "k2": q**2 / 2, "k3": q.exp() - q - 1}[estimator]
    if limit is not None:
        expected = expected.clamp(-limit, limit)
    torch.testing.assert_close(kl.divergence(logps, reference, options(like, kl_estimator=estimator)), expected)


@pytest.mark.parametrize("like", LIBRARIES)
def test_a_ratio_far_away_is_bounded_where_the_library_bounds_it(like: str) -> None:
    """verl has a dual clip of 3 by default, and verl and OpenRLHF bound the logarithm by 20."""
    from swift_rl import losses
    from swift_rl.options import GrpoOptions

    given = GrpoOptions.model_validate({"like": like})
    log_ratio = torch.tensor([2.0], dtype=torch.float64)
    made = losses.policy_losses(torch.zeros(1), log_ratio, torch.tensor([-1.0], dtype=torch.float64), given)
    assert float(made.loss) == pytest.approx(3.0 if like == "verl" else math.exp(2.0))
    assert given.log_ratio_clamp == (20.0 if like in ("verl", "openrlhf") else None)


@pytest.mark.parametrize(("like", "low", "high"), [("trl", None, 1.5), ("verl", 0.8, 2.5), ("nemo", 0.8, 2.5)])
def test_the_bounds_of_cispo(like: str, low: float | None, high: float) -> None:
    assert options(like, loss_type="cispo", epsilon_high=1.5).cispo_limits == (low, high)
    samples = [completion(number, 6) for number in range(5)]
    absolute, relative = (
        summed(grpo(like=name, loss_type="cispo", epsilon_high=1.5), samples, 5, flat=False)[0]
        for name in ("trl", "verl")
    )
    assert not torch.equal(absolute, relative)


def test_the_correction_of_each_library() -> None:
    old, sampled = [np.log([0.5, 0.2, 0.9])], [np.log([0.25, 0.05, 0.45])]
    mask = [np.ones(3, dtype=bool)]
    assert correction.weights(old, sampled, mask, options("trl")).weights[0].tolist() == [0, 0, 0]
    near = correction.weights(old, [old[0] - 0.3], mask, options("trl")).weights[0]
    assert near == pytest.approx([math.exp(0.9)] * 3)
    for like in ("verl", "openrlhf", "nemo"):
        assert correction.weights(old, sampled, mask, options(like)).weights[0].tolist() == [1, 1, 1]
    kept = options("openrlhf", rollout_importance_sampling_mode="sequence_mask",
                   rollout_importance_sampling_threshold=5.0)  # fmt: skip
    assert correction.weights(old, sampled, mask, kept).weights[0] == pytest.approx([2, 4, 2])


@pytest.mark.parametrize("like", LIBRARIES)
def test_what_the_user_types_counts_before_the_preset(like: str) -> None:
    mine = {"advantage_eps": 0.5, "kl_clamp": 3.0, "lone_completion": "zero", "rollout_importance_sampling_mode": "off"}
    made = options(like, **mine)
    assert {name: getattr(made, name) for name in mine} == mine
    again = AlgorithmOptions.model_validate(made.model_dump())
    assert again == made


@pytest.mark.parametrize("like", LIBRARIES)
@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo", "gspo", "cispo", "sapo"])
@pytest.mark.parametrize("estimator", ["grpo", "rloo", "opo", "reinforce_plus_plus"])
def test_a_preset_goes_with_every_loss_and_estimator(like: str, loss: str, estimator: str) -> None:
    assert options(like, loss_type=loss, advantage_estimator=estimator).like == like
    assert options(like, loss_type=loss, scale_rewards="gdpo").scaling == "gdpo"


def test_presets_name_options_only() -> None:
    for constants in PRESETS.values():
        assert set(constants) <= set(AlgorithmOptions.model_fields)

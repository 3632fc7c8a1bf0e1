"""Advantages: each estimator compared with its formula, and properties that hold for any rewards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from swift_rl import advantages
from swift_rl.algorithm_options import AlgorithmOptions

NOISE = np.random.default_rng(0)
GROUPS = np.repeat(np.arange(4), 6)
REWARDS = NOISE.normal(size=(24, 2))
LENGTHS = NOISE.integers(1, 9, size=24)
KL = [NOISE.normal(size=length) for length in LENGTHS]


def per_completion(rewards: Any, groups: Any = GROUPS, lengths: Any = LENGTHS, **options: Any) -> np.ndarray:
    """The advantage of the first token of each completion."""
    made = advantages.estimate(np.asarray(rewards, dtype=float), groups, lengths, AlgorithmOptions(**options))
    assert [len(each) for each in made.tokens] == list(lengths)
    assert all(np.all(each == each[0]) for each in made.tokens)
    return np.array([each[0] for each in made.tokens])


def by_formula(kind: str, rewards: np.ndarray) -> list[float]:
    """The advantages of one group, by a loop over its completions."""
    count, completions = len(rewards), [float(each) for each in rewards]
    mean = math.fsum(completions) / count
    std = math.sqrt(math.fsum((each - mean) ** 2 for each in completions) / (count - 1))
    made = []
    for index, reward in enumerate(completions):
        others = completions[:index] + completions[index + 1 :]
        mean_of_others = math.fsum(others) / len(others)
        std_of_others = math.sqrt(math.fsum((each - mean_of_others) ** 2 for each in others) / (len(others) - 1))
        made.append(
            {
                "grpo": (reward - mean) / (std + 1e-4),
                "none": reward - mean,
                "rloo": reward - mean_of_others,
                "leave one out": (reward - mean_of_others) / (std_of_others + 1e-4),
            }[kind]
        )
    return made


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("grpo", {}),
        ("none", {"scale_rewards": "none"}),
        ("rloo", {"advantage_estimator": "rloo"}),
        ("leave one out", {"leave_one_out": True}),
    ],
)
def test_completion_is_compared_with_its_group(kind: str, options: dict[str, Any]) -> None:
    expected = [value for group in range(4) for value in by_formula(kind, REWARDS[group == GROUPS].sum(axis=1))]
    assert per_completion(REWARDS, **options) == pytest.approx(expected, rel=1e-12)
    order = NOISE.permutation(24)
    shuffled = per_completion(REWARDS[order], GROUPS[order], LENGTHS[order], **options)
    assert shuffled == pytest.approx(np.array(expected)[order], rel=1e-12)


def test_rewards_are_weighted_and_summed() -> None:
    """Rewards of several functions are added with their weights."""
    made = advantages.estimate(REWARDS, GROUPS, LENGTHS, AlgorithmOptions(), weights=(2.0, 0.5))
    assert made.total == pytest.approx(REWARDS @ [2.0, 0.5])
    assert [each[0] for each in made.tokens] == pytest.approx(per_completion(REWARDS @ [[2.0], [0.5]]))


def test_batch_scale_is_std_of_all_rewards() -> None:
    """The batch scale is the standard deviation of all rewards."""
    total = REWARDS.sum(axis=1)
    means = np.array([total[group == GROUPS].mean() for group in GROUPS])
    expected = (total - means) / (total.std(ddof=1) + 1e-4)
    assert per_completion(REWARDS, scale_rewards="batch") == pytest.approx(expected)


def test_opo_weighs_the_baseline_by_length() -> None:
    total = REWARDS.sum(axis=1)
    expected = [
        reward - (total * LENGTHS)[group == GROUPS].sum() / LENGTHS[group == GROUPS].sum()
        for reward, group in zip(total, GROUPS, strict=True)
    ]
    assert per_completion(REWARDS, advantage_estimator="opo") == pytest.approx(expected)


def test_gdpo_standardises_each_function_before_it_adds_them_up() -> None:
    standard = np.zeros_like(REWARDS)
    for group in range(4):
        rows = REWARDS[group == GROUPS]
        standard[group == GROUPS] = (rows - rows.mean(axis=0)) / (rows.std(axis=0, ddof=1) + 1e-4)
    summed = standard.sum(axis=1)
    expected = (summed - summed.mean()) / (summed.std(ddof=1) + 1e-4)
    assert per_completion(REWARDS, scale_rewards="gdpo") == pytest.approx(expected)
    loud = per_completion(REWARDS * [1.0, 1000.0], scale_rewards="gdpo", advantage_eps=1e-12)
    assert loud == pytest.approx(per_completion(REWARDS, scale_rewards="gdpo", advantage_eps=1e-12))


@pytest.mark.parametrize("baseline", [False, True])
def test_reinforce_plus_plus_whitens_returns(baseline: bool) -> None:
    """Reinforce plus plus whitens what each token and all later ones earn."""
    name = "reinforce_plus_plus_baseline" if baseline else "reinforce_plus_plus"
    options = AlgorithmOptions(advantage_estimator=name, beta=0.05, kl_in_reward=True)
    total = REWARDS.sum(axis=1)
    if baseline:
        total = total - np.array([total[group == GROUPS].mean() for group in GROUPS])
    returns = []
    for reward, kl, length in zip(total, KL, LENGTHS, strict=True):
        earned = [-0.05 * each for each in kl]
        earned[-1] += reward
        returns += [[sum(earned[place:]) for place in range(length)]]
    every = np.concatenate(returns)
    expected = [(np.array(each) - every.mean()) / np.sqrt(every.var(ddof=1) + 1e-8) for each in returns]
    made = advantages.estimate(REWARDS, GROUPS, LENGTHS, options, KL)
    for ours, theirs in zip(made.tokens, expected, strict=True):
        assert ours == pytest.approx(theirs)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "opo", "reinforce"])
def test_kl_in_reward_is_subtracted_before_comparison(estimator: str) -> None:
    """KL in the reward is subtracted before completions are compared."""
    options = AlgorithmOptions(advantage_estimator=estimator, beta=0.5, kl_in_reward=True)
    made = advantages.estimate(REWARDS, GROUPS, LENGTHS, options, KL)
    less = REWARDS.sum(axis=1) - 0.5 * np.array([each.sum() for each in KL])
    assert [each[0] for each in made.tokens] == pytest.approx(
        per_completion(less[:, None], advantage_estimator=estimator)
    )
    assert made.total == pytest.approx(REWARDS.sum(axis=1))


def test_advantages_ignore_reward_scale_and_sum_to_zero() -> None:
    """The scale and the zero of rewards do not matter and advantages of a group sum to zero."""
    plain = per_completion(REWARDS, advantage_eps=1e-12)
    assert per_completion(7 * REWARDS + 3, advantage_eps=1e-12) == pytest.approx(plain, rel=1e-9)
    for options in ({}, {"scale_rewards": "none"}, {"scale_rewards": "batch"}, {"advantage_estimator": "rloo"}):
        made = per_completion(REWARDS, **options)
        assert [made[group == GROUPS].sum() for group in range(4)] == pytest.approx([0] * 4, abs=1e-9)
    centred = per_completion(REWARDS, scale_rewards="none")
    assert per_completion(REWARDS, advantage_estimator="rloo") == pytest.approx(centred * 6 / 5)


@pytest.mark.parametrize(
    "options",
    [{}, {"leave_one_out": True}, {"like": "nemo"}, {"scale_rewards": "gdpo"}, {"advantage_estimator": "rloo"}],
)
@pytest.mark.parametrize("reward", [0.35, 0.1, 1e6])
def test_equal_rewards_give_zero_advantage(options: dict[str, Any], reward: float) -> None:
    """Equal rewards give exactly nothing and one winner stays in proportion."""
    groups, lengths = np.zeros(8, dtype=int), np.ones(8, dtype=int)
    equal = np.full((8, 1), reward)
    made = advantages.estimate(equal, groups, lengths, AlgorithmOptions(**options))
    assert all(each[0] == 0 for each in made.tokens)
    assert made.spread.tolist() == [0.0]
    winner = equal.copy()
    winner[3] = 2 * reward
    assert np.abs(per_completion(winner, groups, lengths, **options)).max() <= max(3.0, 2 * reward)


def test_unscored_completion_is_ignored() -> None:
    rewards = REWARDS.copy()
    rewards[2] = np.nan
    rewards[7, 0] = np.nan
    for options in ({}, {"advantage_estimator": "rloo"}, {"leave_one_out": True}, {"scale_rewards": "batch"}):
        made = per_completion(rewards, **options)
        kept = np.delete(np.arange(24), 2)
        known = np.nan_to_num(rewards[kept])
        assert made[2] == 0
        assert made[kept] == pytest.approx(per_completion(known, GROUPS[kept], LENGTHS[kept], **options))
    made_all = advantages.estimate(rewards, GROUPS, LENGTHS, AlgorithmOptions())
    assert not made_all.scored[2]
    assert made_all.scored.sum() == 23
    assert np.isnan(made_all.total[2])


def test_group_with_one_score_has_no_advantage() -> None:
    rewards = np.array([[1.0], [np.nan], [np.nan], [0.5], [0.1], [0.2]])
    groups, lengths = np.array([5, 5, 5, 9, 9, 9]), np.ones(6, dtype=int)
    for options in ({}, {"advantage_estimator": "rloo"}, {"leave_one_out": True}):
        made = advantages.estimate(rewards, groups, lengths, AlgorithmOptions(**options))
        assert [each[0] for each in made.tokens[:3]] == [0, 0, 0]
        assert made.spread == pytest.approx([0, np.std([0.5, 0.1, 0.2], ddof=1)])


def test_entropy_mask_covers_whole_round() -> None:
    """The entropy mask keeps the part of the tokens of the whole round."""
    entropies = [np.array([0.1, 0.9]), np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0])]
    kept = advantages.entropy_mask(entropies, 0.2)
    assert [each.tolist() for each in kept] == [[False, True], [False] * 7 + [True]]
    assert all(each.all() for each in advantages.entropy_mask(entropies, 1.0))

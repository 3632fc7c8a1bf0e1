"""What PPO computes: advantages, returns and both losses, against formulas written out and those of TRL's trainer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from swift.contracts import ModelView
from swift.data.batch import MicroBatch, collate
from swift.data.samples import Encoded, Segment
from swift_rl import gae
from swift_rl.critic import ValueLoss
from swift_rl.options import PpoOptions
from swift_rl.ppo import Ppo

NOISE = np.random.default_rng(7)


def double_sum(rewards: np.ndarray, values: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """The definition: the sum over all later steps of (γλ)^k times the error of the critic at each."""
    following = np.append(values[1:], 0.0)
    errors = rewards + gamma * following - values
    steps = range(len(values))
    return np.array([sum((gamma * lam) ** (later - here) * errors[later] for later in steps[here:]) for here in steps])


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (0.97, 0.0), (1.0, 1.0)])
def test_gae_matches_definition_and_skips_masked_tokens(gamma: float, lam: float) -> None:
    """Advantages are the sum of the definition and pass over tokens that the policy did not sample."""
    rewards, values = NOISE.normal(size=9), NOISE.normal(size=9)
    expected = double_sum(rewards, values, gamma, lam)
    assert gae.advantages(rewards, values, gamma=gamma, lam=lam) == pytest.approx(expected, abs=1e-12)
    places = np.array([0, 1, 2, 5, 6, 7, 8, 11, 12])  # observations lie between
    mask = np.isin(np.arange(14), places)
    wide_rewards, wide_values = NOISE.normal(size=14), NOISE.normal(size=14)
    wide_rewards[places], wide_values[places] = rewards, values
    found = gae.advantages(wide_rewards, wide_values, mask, gamma=gamma, lam=lam)
    assert found[mask] == pytest.approx(expected, abs=1e-12)
    assert not found[~mask].any()
    if gamma == lam == 1:
        assert expected == pytest.approx(rewards[::-1].cumsum()[::-1] - values, abs=1e-12)


def of_trl(scores: Any, values: Any, kl: Any, mask: Any, options: PpoOptions) -> tuple[torch.Tensor, torch.Tensor]:
    """Steps 4 to 6 of TRL's PPOTrainer, on padded rows, with one mask for rewards and advantages."""

    def whiten(each: torch.Tensor, *, shift_mean: bool = True) -> torch.Tensor:
        count = mask.sum().double()
        mean = (each * mask).sum() / count
        variance = ((each - mean) ** 2 * mask).sum() / count * (count / (count - 1))
        white = (each - mean) * torch.rsqrt(variance + 1e-8)
        return torch.masked_fill(white if shift_mean else white + mean, ~mask, 0)

    rewards = -options.kl_coef * kl
    rewards[torch.arange(len(scores)), mask.sum(1) - 1] += scores
    rewards = torch.masked_fill(rewards, ~mask, 0)
    if options.whiten_rewards:
        rewards = whiten(rewards, shift_mean=False)
    last, reversed_ = 0, []
    for t in reversed(range(mask.shape[1])):
        following = values[:, t + 1] if t < mask.shape[1] - 1 else 0.0
        last = rewards[:, t] + options.gamma * following - values[:, t] + options.gamma * options.lam * last
        reversed_.append(last)
    advantages = torch.stack(reversed_[::-1], dim=1)
    return whiten(advantages), advantages + values


@pytest.mark.parametrize("white", [False, True])
def test_a_round_is_estimated_as_trl_does(white: bool) -> None:
    options = PpoOptions(gamma=0.98, lam=0.9, kl_coef=0.3, whiten_rewards=white)
    lengths = [5, 1, 7, 3]
    scores = NOISE.normal(size=4)
    values, kl = ([NOISE.normal(size=length) for length in lengths] for _ in range(2))
    masks = [np.ones(length, dtype=bool) for length in lengths]
    found = gae.estimate(scores, values, kl, masks, options, kl_coef=options.kl_coef)
    padded = [
        torch.nn.utils.rnn.pad_sequence([torch.from_numpy(each) for each in rows], batch_first=True)
        for rows in (values, kl, masks)
    ]
    advantages, returns = of_trl(torch.from_numpy(scores), *padded, options)
    mask = padded[2]
    assert np.concatenate(found.advantages) == pytest.approx(advantages[mask].numpy(), abs=1e-10)
    assert np.concatenate(found.returns) == pytest.approx(returns[mask].numpy(), abs=1e-10)


def test_masked_completion_does_not_affect_others() -> None:
    options = PpoOptions()
    scores, values = NOISE.normal(size=3), [NOISE.normal(size=4) for _ in range(3)]
    masks = [np.ones(4, dtype=bool), np.ones(4, dtype=bool), np.zeros(4, dtype=bool)]
    both = gae.estimate(scores, values, None, masks, options, kl_coef=0.0)
    alone = gae.estimate(scores[:2], values[:2], None, masks[:2], options, kl_coef=0.0)
    assert np.array_equal(both.advantages[:2], alone.advantages)
    assert not both.advantages[2].any()
    assert np.concatenate(alone.advantages).mean() == pytest.approx(0, abs=1e-12)
    assert np.concatenate(alone.advantages).std(ddof=1) == pytest.approx(1, abs=1e-6)


def test_explained_variance_is_1_for_exact_0_for_constant() -> None:
    """Explained variance is 1 for a critic that knows and 0 for one that says one number."""
    returns, masks = [NOISE.normal(size=6)], [np.ones(6, dtype=bool)]
    assert gae.explained_variance(returns, returns, masks) == 1
    assert gae.explained_variance(returns, [np.full(6, 3.0)], masks) == pytest.approx(0, abs=1e-12)
    assert gae.explained_variance([np.ones(6)], [np.ones(6)], masks) == 0


def test_adaptive_kl_coefficient_changes_at_most_a_fifth() -> None:
    """The coefficient rises where the policy is too far away and by no more than a fifth per horizon."""
    options = PpoOptions(kl_target=0.1, kl_horizon=100)
    assert gae.adapted(0.05, 0.105, 10, options) == pytest.approx(0.05 * (1 + 0.05 * 0.1))
    assert gae.adapted(0.05, 7.0, 10, options) == pytest.approx(0.05 * (1 + 0.2 * 0.1))
    assert gae.adapted(0.05, 0.0, 10, options) == pytest.approx(0.05 * (1 - 0.2 * 0.1))
    assert gae.adapted(0.05, 7.0, 10, PpoOptions()) == 0.05


LENGTHS = (5, 1, 7, 2)
NAMES = ("advantages", "old_logps", "returns", "old_values")


def rows() -> list[Encoded]:
    """Completions after prompts of three tokens, with numbers that clip on both sides."""
    noise = np.random.default_rng(3)
    made = []
    for number, length in enumerate(LENGTHS):
        values = {name: np.zeros(3 + length, np.float32) for name in NAMES}
        for name in NAMES:
            values[name][3:] = noise.normal(size=length)
        weights = np.concatenate([np.zeros(3, np.float32), np.ones(length, np.float32)])
        tokens = noise.integers(1, 50, size=3 + length).astype(np.int32)
        made.append(Encoded(number, (Segment(tokens, weights, values),)))
    return made


def padded_rows(samples: list[Encoded], name: str) -> torch.Tensor:
    given = [torch.from_numpy(each.segments[0].token_values[name][3:]).double() for each in samples]
    return torch.nn.utils.rnn.pad_sequence(given, batch_first=True)


def spread(batch: MicroBatch, leaf: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(batch.weights.shape, dtype=torch.float64).masked_scatter(batch.weights > 0, leaf[mask])


@pytest.mark.parametrize("flat", [False, True])
def test_both_losses_and_their_gradients_are_those_of_trl(flat: bool) -> None:
    samples, options = rows(), PpoOptions(cliprange=0.25, cliprange_value=0.3, vf_coef=0.4)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    given = {name: padded_rows(samples, name) for name in NAMES}
    noise = torch.Generator().manual_seed(1)

    def near(name: str) -> torch.Tensor:
        moved = given[name] + 0.4 * torch.randn(mask.shape, generator=noise, dtype=torch.float64)
        return moved.requires_grad_()

    logps, values = near("old_logps"), near("old_values")
    ratio = torch.exp(logps - given["old_logps"])
    bounded = torch.clamp(ratio, 1 - options.cliprange, 1 + options.cliprange)
    policy = torch.max(-given["advantages"] * ratio, -given["advantages"] * bounded)[mask].mean()
    clipped = torch.clamp(
        values, given["old_values"] - options.cliprange_value, given["old_values"] + options.cliprange_value
    )
    worst = torch.max((values - given["returns"]) ** 2, (clipped - given["returns"]) ** 2)
    expected = policy + options.vf_coef * 0.5 * worst[mask].mean()
    wanted = torch.autograd.grad(expected, (logps, values))

    loss = torch.zeros((), dtype=torch.float64)
    for start in (0, 2):
        part = slice(start, start + 2)
        batch = collate(samples[part], flat=flat)
        view = ModelView(
            token_logps=spread(batch, logps[part], mask[part]), values=spread(batch, values[part], mask[part])
        )
        for objective in (Ppo(options), ValueLoss(options)):
            loss = loss + objective.loss(view, batch).loss / objective.row_weight(samples)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    for found, each in zip(torch.autograd.grad(loss, (logps, values)), wanted, strict=True):
        assert torch.allclose(found[mask], each[mask], rtol=1e-5, atol=1e-8)
        assert bool((found[mask] == 0).any())  # clipped
        assert bool((found[mask] != 0).any())

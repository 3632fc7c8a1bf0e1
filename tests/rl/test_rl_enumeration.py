"""Estimators by enumeration: all 64 completions of a small policy, so that an expectation is a sum and not a guess."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from small_policies import ANSWERS, LENGTH, parameters, token_logps

from swift_rl import advantages, correction, kl, losses
from swift_rl.algorithm_options import AlgorithmOptions

REWARDS = torch.tensor(np.random.default_rng(3).normal(size=len(ANSWERS)))


def gradient(value: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    (made,) = torch.autograd.grad(value, logits)
    return made


def exact(logits: torch.Tensor) -> torch.Tensor:
    """The gradient of the expected reward."""
    return gradient((token_logps(logits).sum(1).exp() * REWARDS).sum(), logits)


def expected_step(logits: torch.Tensor, options: AlgorithmOptions, size: int = 2) -> torch.Tensor:
    """Minus the mean gradient of the loss, over all groups of `size` completions with their probabilities."""
    groups = np.array(list(product(range(len(ANSWERS)), repeat=size)))
    members = torch.from_numpy(groups.ravel())
    numbers, lengths = np.repeat(np.arange(len(groups)), size), np.full(groups.size, LENGTH)
    made = advantages.estimate(REWARDS[members].numpy()[:, None], numbers, lengths, options)
    logps = token_logps(logits)
    chance = logps.detach().sum(1).exp()[torch.from_numpy(groups)].prod(dim=1).repeat_interleave(size)
    sampled = logps[members]
    policy = losses.policy_losses(sampled, sampled - sampled.detach(), torch.from_numpy(np.stack(made.tokens)), options)
    return -gradient((policy.loss.sum(1) * chance).sum() / size, logits)


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({"advantage_estimator": "reinforce"}, 1.0),
        ({"advantage_estimator": "rloo"}, 1.0),
        ({"scale_rewards": "none"}, 0.5),
        ({"scale_rewards": "none", "loss_type": "cispo"}, 0.5),
        ({"scale_rewards": "none", "loss_type": "sapo"}, 0.5),
    ],
)
def test_the_mean_step_is_the_policy_gradient(options: dict[str, Any], factor: float) -> None:
    """`factor` is (G - 1) / G where a completion is part of its own baseline."""
    logits = parameters(0).requires_grad_()
    torch.testing.assert_close(expected_step(logits, AlgorithmOptions(**options)), factor * exact(logits))


def policy_and_reference() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits = parameters(1).requires_grad_()
    return logits, token_logps(logits), token_logps(parameters(2))


def test_k1_and_k3_are_unbiased_and_k2_is_not() -> None:
    """The means of k1 and k3 are the divergence and that of k2 is not."""
    _, logps, reference = policy_and_reference()
    chance = logps.detach().sum(1).exp()
    divergence = (chance * (logps.detach() - reference).sum(1)).sum()
    means = {}
    for kind in ("k1", "k2", "k3"):
        each = kl.divergence(logps.detach(), reference, AlgorithmOptions(kl_estimator=kind))
        means[kind] = float((chance * each.sum(1)).sum())
    assert means["k1"] == pytest.approx(float(divergence), rel=1e-10)
    assert means["k3"] == pytest.approx(float(divergence), rel=1e-10)
    assert means["k2"] != pytest.approx(float(divergence), rel=0.01)


def test_divergences_of_arrays_are_those_of_tensors_in_float64() -> None:
    _, logps, reference = policy_and_reference()
    options = AlgorithmOptions(kl_estimator="k3", kl_clamp=0.5)
    made = kl.of_completions(list(logps.detach().float().numpy()), list(reference.float().numpy()), options)
    assert made[0].dtype == np.float64
    torch.testing.assert_close(
        torch.from_numpy(np.stack(made)), kl.divergence(logps.detach(), reference, options), rtol=1e-5, atol=1e-6
    )


def under(policy: torch.Tensor, engine: torch.Tensor, **options: Any) -> float:
    """The mean reward that the corrected completions of the engine estimate."""
    given = AlgorithmOptions(**options)
    masks = [np.ones(LENGTH, dtype=bool)] * len(ANSWERS)
    made = correction.weights(list(policy.numpy()), list(engine.numpy()), masks, given)
    chance = engine.sum(1).exp()
    if "sequence" in given.rollout_importance_sampling_mode:
        weights = torch.tensor([each[0] for each in made.weights])
    else:
        weights = torch.from_numpy(np.stack(made.weights)).prod(dim=1)
    return float((chance * weights * REWARDS).sum())


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_weighted_engine_completions_are_unbiased(temperature: float) -> None:
    """The weighted completions of an engine have the mean of the policy."""
    policy, engine = token_logps(parameters(4), temperature), token_logps(parameters(5))
    goal = float((policy.sum(1).exp() * REWARDS).sum())
    far = {"rollout_importance_sampling_threshold": 1e9}
    whole = under(policy, engine, rollout_importance_sampling_mode="sequence_truncate", **far)
    by_token = under(policy, engine, rollout_importance_sampling_mode="token_truncate", **far)
    assert (whole, by_token) == (pytest.approx(goal, rel=1e-9), pytest.approx(goal, rel=1e-9))
    assert float((engine.sum(1).exp() * REWARDS).sum()) != pytest.approx(goal, abs=0.01)

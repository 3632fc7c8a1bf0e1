"""The numbers of stored rounds, and plain reference losses, which backends are compared with.

One completion at a time, from all logits, by the formulas of the papers, without code of the tested losses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from swift_testing import Expected, Recipe, run_reference

UNIFORM = -math.log(264)
"""About what a model with random weights says of any token of the kit's vocabulary."""
CANDIDATES = 6
"""Number of tokens that the teacher of a stored round scores."""
TEMPERATURE = 0.8
"""Sampling temperature of stored rounds."""


def values_of(sample: int, length: int) -> dict[str, np.ndarray]:
    """Return what the tokens of a sample are given: waves of different lengths, so that every sample has its own."""
    angles = sample * 1.7 + 0.7 * np.arange(length)
    old = UNIFORM + 0.3 * np.cos(angles)
    values = {
        "advantages": np.full(length, 0.2 + math.sin(2.0 * sample + 1)),
        "old_logps": old,
        "ref_logps": old + 0.2 * np.sin(1.3 * angles),
        "is_weights": 1.2 + 0.7 * np.sin(1.9 * angles),
        "returns": np.cos(0.4 * angles),
        "old_values": 0.3 * np.sin(0.9 * angles),
    }
    return {name: value.astype(np.float32) for name, value in values.items()}


def taught(ids: Any, sample: int) -> tuple[np.ndarray, np.ndarray]:
    """Return candidates of each token of a sample, and a teacher's log-probabilities of them, [tokens, K]."""
    first = np.asarray(ids, dtype=np.int64) + np.arange(len(ids)) % 3
    candidates = (first[:, None] + 17 * np.arange(CANDIDATES)) % 200
    waves = np.sin(sample + 0.7 * np.arange(len(ids))[:, None] + 1.1 * np.arange(CANDIDATES))
    odds = np.exp(waves)
    return candidates.astype(np.int32), np.log(0.9 * odds / odds.sum(1, keepdims=True)).astype(np.float32)


BETA, LOW, HIGH, DUAL, DRIFT = 0.1, 0.2, 0.28, 1.5, 0.1
"""Of grpo: the KL term's coefficient, the clip's ranges, the dual clip's bound, and how far a completion may drift."""
CLIP, CLIP_VALUES, VALUE_FACTOR, CRITIC_RATE = 0.2, 0.1, 0.5, 2e-3
"""Of ppo."""
MIXTURE = 0.3
"""Of gkd: β of the generalized Jensen-Shannon divergence."""


def grpo(recipe: Recipe) -> Expected:
    """Train with a clipped policy gradient and a KL term, as DAPO and DeepSeek's V3.2 report describe them."""
    return run_reference(replace(recipe, loss=_grpo))


def ppo(recipe: Recipe) -> Expected:
    """Train a policy with PPO's clipped loss, and another model of its weights as the critic."""
    critic = run_reference(replace(recipe, loss=_values, task="value", lr=CRITIC_RATE))
    policy = run_reference(replace(recipe, loss=_ppo))
    policy.metrics = {"critic/loss": critic.losses, "critic/grad_norm": critic.grad_norms}
    return policy


def ppo_shared(recipe: Recipe) -> Expected:
    """Train one model with both losses of PPO: its unembedding is the policy, a head on the same layers the critic."""
    return run_reference(replace(recipe, loss=_both, prepare=_with_value_head))


def gkd(recipe: Recipe) -> Expected:
    """Train to the divergence from a teacher over candidates and one outcome for all other tokens."""
    return run_reference(replace(recipe, loss=_gkd))


def _grpo(model: Any, recipe: Recipe, batch: Sequence[int]) -> torch.Tensor:
    total = torch.zeros(())
    for index in batch:
        logps, values = _logps_of(model, recipe, index)
        logps = logps.gather(-1, _completion(recipe, index)[:, None])[:, 0]
        advantage, old = values["advantages"], values["old_logps"]
        ratio = (logps - old).exp()
        surrogate = torch.min(ratio.clamp(max=DUAL) * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)
        if advantage[0] < 0 and (old - logps).mean() > DRIFT:
            surrogate = surrogate * 0
        ahead = values["ref_logps"] - logps
        total = total + (BETA * (ahead.exp() - ahead - 1) - values["is_weights"] * surrogate).sum()
    return total / _tokens(recipe, batch)


def _ppo(model: Any, recipe: Recipe, batch: Sequence[int]) -> torch.Tensor:
    total = torch.zeros(())
    for index in batch:
        logps, values = _logps_of(model, recipe, index)
        logps = logps.gather(-1, _completion(recipe, index)[:, None])[:, 0]
        ratio, advantage = (logps - values["old_logps"]).exp(), values["advantages"]
        surrogate = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        total = total - (values["is_weights"] * surrogate).sum()
    return total / _tokens(recipe, batch)


def _values(model: Any, recipe: Recipe, batch: Sequence[int]) -> torch.Tensor:
    total = torch.zeros(())
    for index in batch:
        ((prompt, completion),) = recipe.samples[index]
        hidden = model.model(input_ids=torch.tensor([prompt + completion]), use_cache=False).last_hidden_state
        predicted = model.score(hidden)[0, len(prompt) - 1 : -1, 0]
        total = total + _squared(predicted, _numbers(recipe, index))
    return VALUE_FACTOR * total / _tokens(recipe, batch)


def _with_value_head(model: Any, recipe: Recipe) -> None:
    assert recipe.head_start is not None
    model.value_head = torch.nn.Linear(model.config.hidden_size, 1, bias=False)
    model.value_head.weight.data.copy_(recipe.head_start("score.weight", (1, model.config.hidden_size)))


def _both(model: Any, recipe: Recipe, batch: Sequence[int]) -> torch.Tensor:
    total = torch.zeros(())
    for index in batch:
        ((prompt, completion),) = recipe.samples[index]
        hidden = model.model(input_ids=torch.tensor([prompt + completion]), use_cache=False).last_hidden_state
        total = total + _squared(model.value_head(hidden)[0, len(prompt) - 1 : -1, 0], _numbers(recipe, index))
    return _ppo(model, recipe, batch) + VALUE_FACTOR * total / _tokens(recipe, batch)


def _squared(predicted: torch.Tensor, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return half the squared error, or that of a value that moved as far as it may, whichever is larger."""
    old, returns = values["old_values"], values["returns"]
    bounded = old + (predicted - old).clamp(-CLIP_VALUES, CLIP_VALUES)
    return 0.5 * torch.max((predicted - returns).square(), (bounded - returns).square()).sum()


def _gkd(model: Any, recipe: Recipe, batch: Sequence[int]) -> torch.Tensor:
    total = torch.zeros(())
    for index in batch:
        ((prompt, completion),) = recipe.samples[index]
        candidates, teacher = (torch.from_numpy(each)[len(prompt) :] for each in taught(prompt + completion, index))
        chances = (
            model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].float().softmax(-1)
        )
        ours = chances.gather(-1, candidates.long())
        ours = torch.cat([ours, 1 - ours.sum(-1, keepdim=True)], -1)
        theirs = teacher.double().exp()
        theirs = torch.cat([theirs, 1 - theirs.sum(-1, keepdim=True)], -1).float()
        mixture = MIXTURE * theirs + (1 - MIXTURE) * ours
        to_mixture = [(each * (each / mixture).log()).sum() for each in (theirs, ours)]
        total = total + MIXTURE * to_mixture[0] + (1 - MIXTURE) * to_mixture[1]
    return total / _tokens(recipe, batch)


def _logps_of(model: Any, recipe: Recipe, index: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return log-probabilities of all tokens at each position of a completion, and the values of its tokens."""
    ((prompt, completion),) = recipe.samples[index]
    logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].float()
    return (logits / TEMPERATURE).log_softmax(-1), _numbers(recipe, index)


def _completion(recipe: Recipe, index: int) -> torch.Tensor:
    return torch.tensor(recipe.samples[index][0][1])


def _numbers(recipe: Recipe, index: int) -> dict[str, torch.Tensor]:
    ((prompt, completion),) = recipe.samples[index]
    values = values_of(index, len(prompt) + len(completion))
    return {name: torch.from_numpy(value)[len(prompt) :] for name, value in values.items()}


def _tokens(recipe: Recipe, batch: Sequence[int]) -> int:
    return sum(len(recipe.samples[index][0][1]) for index in batch)

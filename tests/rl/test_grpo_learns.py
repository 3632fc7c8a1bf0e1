"""A model with random weights learns what is rewarded, by every estimator, and nothing from empty rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiers import tiered
from tiny_runs import run_training

from swift_demo.model import write_model
from swift_rl.rounds.files import read_round

TOKEN = 64
"""One of 264 that may be sampled: by chance a token of a completion is this one every 264th time."""
ROWS = [{"messages": [{"role": "user", "content": letter}]} for letter in "abcdefghijklmnopqrstuvwxyz"]
REWARDS = f"""
import hashlib


def share(completion_ids, **columns):
    return [sum(token == {TOKEN} for token in ids) / 8 for ids in completion_ids]


def noise(completion_ids, **columns):
    return [int(hashlib.sha256(str(ids).encode()).hexdigest(), 16) % 1000 / 1000 for ids in completion_ids]


def share_of_some(completion_ids, hopeless, **columns):
    return [0.0 if none else some for none, some in zip(hopeless, share(completion_ids))]


share.batched = noise.batched = share_of_some.batched = True
"""


def shares(folder: Path, reward: str, rows: list[dict[str, Any]] = ROWS, **changes: Any) -> list[float]:
    """Return the share of the token in the completions of each round, as the rounds themselves tell it."""
    (folder / "rewards.py").write_text(REWARDS)
    settings = {
        "objective.name": "grpo",
        "objective.reward_funcs": [f"{folder / 'rewards.py'}:{reward}"],
        "objective.num_generations": 8,
        "objective.max_completion_length": 8,
        "objective.max_idle_rounds": 0,
        "train.global_batch": 64,
        "train.micro_batch": 64,
        "train.max_steps": 32,
        "optim.lr": 6e-3,
    }
    run = run_training(write_model(folder / "demo", hidden=64), folder, rows, {**settings, **changes})
    found = []
    for number in range(len(list((run.folder / "rollouts").glob("*.safetensors")))):
        made = read_round(run.folder / "rollouts", number)
        assert made is not None
        sampled = [token for completion in made.completions for token in completion.token_ids.tolist()]
        found.append(sampled.count(TOKEN) / len(sampled))
    return found


CHANGES: dict[str, dict[str, Any]] = {
    "dapo": {},
    "dr_grpo": {"objective.loss_type": "dr_grpo", "objective.scale_rewards": "none", "optim.lr": 1e-2},
    "gspo": {"objective.loss_type": "gspo"},
    "cispo": {"objective.loss_type": "cispo"},
    "sapo": {"objective.loss_type": "sapo"},
    "rloo": {"objective.advantage_estimator": "rloo"},
    "reinforce++": {"objective.advantage_estimator": "reinforce_plus_plus_baseline"},
    "rounds of four steps": {
        "objective.num_iterations": 2,
        "objective.steps_per_generation": 2,
        "train.max_steps": 96,
    },
    "lag": {"objective.rollout_staleness": 1},
}


@pytest.mark.parametrize("name", tiered(CHANGES, (), ("dr_grpo", "gspo", "cispo", "sapo", "rloo", "reinforce++")))
def test_rewarded_output_is_learned(tmp_path: Path, name: str) -> None:
    found = shares(tmp_path, "share", **CHANGES[name])
    assert found[0] < 0.05
    assert found[-1] > 0.5


PPO = {
    "objective.name": "ppo",
    "objective.num_generations": 1,
    "objective.num_ppo_epochs": 2,
    "objective.kl_coef": 0.0,
    "objective.vf_coef": 0.5,
    "train.max_steps": 56,
}


CRITICS: dict[str, dict[str, Any]] = {
    "shared": {"objective.critic": "shared"},
    "separate": {"objective.critic_lr": 1e-2},
}


@pytest.mark.parametrize("critic", tiered(CRITICS, (), ("separate",)))
def test_critic_learns_from_one_completion_per_prompt(tmp_path: Path, critic: str) -> None:
    found = shares(tmp_path, "share", **PPO, **CRITICS[critic])
    assert found[0] < 0.05
    assert found[-1] > 0.9

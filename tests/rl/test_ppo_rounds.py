"""Runs of PPO: what policy and critic learn from, and runs that are resumed in the middle of a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_rounds import ROWS, learned, rounds
from tiny_runs import Trained, run_training
from transformers import AutoModelForCausalLM

from swift.checkpoint.load import facts_of
from swift.errors import SwiftError
from swift_rl import gae
from swift_rl.options import PpoOptions


def settings(rewards: Path, **changes: Any) -> dict[str, Any]:
    """Eight completions to as many prompts in a round, which serves four steps."""
    return {
        "objective.name": "ppo",
        "objective.reward_funcs": [f"{rewards}:evens"],
        "objective.max_completion_length": 6,
        "objective.num_ppo_epochs": 2,
        "objective.num_mini_batches": 2,
        "train.global_batch": 4,
        "train.micro_batch": 2,
        "train.max_steps": 8,
        "checkpoint.save_steps": 1,
        **changes,
    }


def of_critic(run: Trained, after: int = 0) -> list[tuple[float, float]]:
    return [
        (line["critic/loss"], line["critic/grad_norm"])
        for step, line in run.lines.items()
        if step > after and "critic/loss" in line
    ]


def test_ppo_resumes_mid_round_bit_for_bit(tied: Path, rewards: Path, tmp_path: Path) -> None:
    """A run resumed in the middle of a round has the same bits in policy and critic."""
    changes = {"objective.kl_target": 1e-4, "objective.kl_horizon": 16, "objective.critic_lr": 3e-3}
    changes |= {"objective.temperature": 0.8, "objective.missing_eos_penalty": 0.5}
    changes |= {"objective.whiten_rewards": True}
    whole = run_training(tied, tmp_path, ROWS, settings(rewards, **changes))
    resume = {"checkpoint.resume": str(whole.folder / "checkpoint-2"), "logging.run_name": "resumed"}
    rest = run_training(tied, tmp_path, ROWS, settings(rewards, **changes, **resume))
    assert learned(rest) == learned(whole, after=2)
    assert of_critic(rest) == of_critic(whole, after=2)
    assert len(of_critic(rest)) == 6
    made = rounds(whole)
    used, apart = made[0].facts["kl_coef"], made[0].facts["kl"]
    assert made[1].facts["kl_coef"] == gae.adapted(used, apart, 8, PpoOptions(kl_target=1e-4, kl_horizon=16)) < used
    assert list(facts_of(whole.folder / "checkpoint-2").roles) == ["critic"]
    first = whole.lines[1]
    assert apart == 0
    assert (first["ratio"], first["approx_kl"], first["critic/clip_ratio"]) == (1, 0, 0)
    assert first["critic/learning_rate"] == pytest.approx(3 * first["learning_rate"])

    model = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
    completions, scores = made[1].completions, []
    for completion in made[0].completions:  # the reference, the reward and its place, from the tokens alone
        prompt = made[0].prompts[completion.prompt].token_ids
        ids = torch.tensor(np.concatenate([prompt, completion.token_ids])[None].astype("int64"))
        logps = (model(ids).logits[0, :-1] / 0.8).log_softmax(-1).gather(-1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
        assert completion.ref_logps == pytest.approx(logps.detach().numpy(), abs=1e-5)
        even = float(np.mean(completion.token_ids % 2 == 0))
        scores.append(even - 0.5 * (completion.finish_reason == "length"))
    values = [completion.old_values for completion in made[0].completions]
    masks = [np.ones(len(value), dtype=bool) for value in values]
    expected = gae.estimate(np.array(scores), values, None, masks, PpoOptions(whiten_rewards=True), kl_coef=0.0)
    for place, completion in enumerate(made[0].completions):
        assert completion.returns == pytest.approx(expected.returns[place], abs=1e-9)
        assert completion.advantages == pytest.approx(expected.advantages[place], abs=1e-9)
    assert any(np.abs(each.old_logps - each.ref_logps).max() > 1e-4 for each in completions)

    # The second round, in which the policy has moved: by what its file says of policy, reference and critic.
    scores = [np.mean(each.token_ids % 2 == 0) - 0.5 * (each.finish_reason == "length") for each in completions]
    values = [each.old_values for each in completions]
    masks = [np.ones(len(value), dtype=bool) for value in values]
    apart = [each.old_logps.astype(np.float64) - each.ref_logps for each in completions]
    facts = made[1].facts
    options = PpoOptions(whiten_rewards=True)
    expected = gae.estimate(np.array(scores), values, apart, masks, options, kl_coef=facts["kl_coef"])
    for place, completion in enumerate(completions):
        assert completion.returns == pytest.approx(expected.returns[place], abs=1e-6)
        assert completion.advantages == pytest.approx(expected.advantages[place], abs=1e-6)
    told, said = (np.concatenate(each).astype(np.float64) for each in (expected.returns, values))
    assert facts["explained_variance"] == pytest.approx(1 - (told - said).var() / told.var(), abs=1e-6)
    assert facts["kl"] == pytest.approx(np.concatenate(apart).mean(), abs=1e-9)
    assert facts["kl"] > 0
    for name in ("kl", "kl_coef", "explained_variance", "value", "return"):
        assert whole.lines[5][name] == facts[name]


def test_while_the_critic_warms_up_the_policy_stays_as_it_is(tied: Path, rewards: Path, tmp_path: Path) -> None:
    changes = {"objective.critic_warmup": 4, "objective.kl_coef": 0.0, "train.max_steps": 6, "optim.warmup_steps": 0}
    run = run_training(tied, tmp_path, ROWS, settings(rewards, **changes, **{"checkpoint.save_steps": 100}))
    assert [line["learning_rate"] > 0 for line in run.lines.values()] == [False] * 4 + [True] * 2
    assert [line["approx_kl"] for line in run.lines.values()][:5] == pytest.approx([0] * 5, abs=1e-9)
    assert run.lines[6]["approx_kl"] > 1e-8
    losses = [loss for loss, _ in of_critic(run)]
    assert sum(losses[2:4]) < sum(losses[:2])  # the same completions, once more


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective.dynamic_sample": True}, "ppo, which compares no groups"),
        ({"objective.reward_funcs": []}, "No reward is configured"),
        ({"objective.critic_model": "nowhere/at-all"}, "nowhere"),
    ],
)
def test_unsupported_ppo_input_is_refused_before_loading(
    tied: Path, rewards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    """What PPO cannot learn from is refused before weights load."""
    monkeypatch.setattr("swift.train.prepare.load_model", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(SwiftError, match=said):
        run_training(tied, tmp_path, ROWS, settings(rewards, **changes))

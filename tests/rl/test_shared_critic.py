"""A critic on the policy's own layers: its numbers, and where its head is kept and where it is left out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import numpy as np
import pytest
import torch
from processes import on_processes, succeeded
from test_ppo_rounds import settings
from test_rounds import ROWS, learned, rounds
from tiny_runs import Trained, run_training
from transformers import AutoModelForCausalLM

from swift.checkpoint import open_checkpoint
from swift.errors import SwiftError
from swift.models.files import SafetensorsFolder
from swift.testing import Layout
from swift.testing.checks import near
from swift.testing.trials import Trials
from swift_rl.testing import CASES

SHARED = {"objective.critic": "shared", "objective.vf_coef": 0.5, "optim.warmup_steps": 0}
HEAD = "model.value_head.weight"
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp": (2, {"backend.name": "fsdp"}),
    "megatron tp 2": (2, {"backend.name": "megatron", "parallel.tp": 2}),
}


def test_a_run_with_a_head_on_the_policy_is_resumed_to_the_same_bits_and_leaves_the_head_out_of_what_others_load(
    tied: Path, rewards: Path, tmp_path: Path
) -> None:
    exported = tmp_path / "exported"
    to_hf = {"export.to": "hf", "export.out": str(exported)}
    whole = run_training(tied, tmp_path, ROWS, settings(rewards, **SHARED, **to_hf))
    resume = {"checkpoint.resume": str(whole.folder / "checkpoint-2"), "logging.run_name": "resumed"}
    rest = run_training(tied, tmp_path, ROWS, settings(rewards, **SHARED, **resume))
    assert learned(rest) == learned(whole, after=2)
    assert len(learned(rest)) == 6
    assert whole.lines[4]["critic/loss"] < whole.lines[1]["critic/loss"]
    assert not any("critic/learning_rate" in line for line in whole.lines.values())

    saved = open_checkpoint(whole.folder / "checkpoint-4")
    assert HEAD in saved.names()
    assert "optim.value_head.weight.exp_avg" in saved.names()
    assert not saved.facts.roles
    assert not [name for name in SafetensorsFolder(exported).names() if "value_head" in name]
    assert not [name for name in SafetensorsFolder(whole.folder / "checkpoint-4").names() if "value_head" in name]

    # What the critic said of the answers of the second round, from the weights of its first step alone.
    model = AutoModelForCausalLM.from_pretrained(whole.folder / "checkpoint-4", dtype=torch.float32)
    head, made = saved.read(HEAD), rounds(whole)[1]
    for answer in made.answers:
        prompt = made.prompts[answer.prompt].token_ids
        ids = torch.tensor(np.concatenate([prompt, answer.token_ids])[None].astype("int64"))
        values = (model.model(ids).last_hidden_state @ head.T)[0, len(prompt) - 1 : -1, 0]
        assert answer.token_values["old_values"] == pytest.approx(values.detach().numpy(), abs=1e-5)


@pytest.mark.full
def test_three_steps_have_the_numbers_of_plain_torch(tmp_path: Path) -> None:
    case = next(each for each in CASES if each.name == "ppo with a shared critic")
    trials = Trials("torch", tmp_path, cases=CASES)
    expected = trials.expected(case)
    (outcome,) = succeeded(trials.whole(case, Layout(1)))
    for step in (1, 2, 3):
        near(f"loss of step {step}", outcome.results[step].loss, expected.losses[step - 1], 1e-5)
        near(f"gradient norm of step {step}", outcome.results[step].grad_norm, expected.grad_norms[step - 1], 1e-5)


def trained(model: Path, out: Path, rewards: Path, changes: dict[str, Any]) -> Trained:
    few = {"train.max_steps": 6, "optim.eps": 1e-6, "objective.cliprange_value": 0.05}
    return run_training(model, out, ROWS, settings(rewards, **{**SHARED, **few, **changes}))


@pytest.mark.full
@pytest.mark.parametrize("backend", LAYOUTS)
def test_a_run_is_resumed_in_the_middle_of_a_round_on_another_backend(
    tied: Path, rewards: Path, tmp_path: Path, backend: str
) -> None:
    processes, plan = LAYOUTS[backend]
    whole = succeeded(on_processes(1, partial(trained, tied, tmp_path / "torch", rewards, {}))[0])[0]
    resume = {**plan, "checkpoint.resume": str(whole.folder / "checkpoint-2")}
    rest = succeeded(on_processes(processes, partial(trained, tied, tmp_path / "rest", rewards, resume))[0])[0]
    for name in ("loss", "grad_norm", "critic/loss", "explained_variance"):
        ours, theirs = ([line[name] for step, line in run.lines.items() if step > 2] for run in (rest, whole))
        assert len(ours) == 4
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tuner.kind": "lora"}, "adapters are trained and saved alone"),
        ({"objective.critic_lr": 1e-3}, "critic_lr is about a critic that is a model of its own"),
        ({"objective.critic_warmup": 2}, "critic_warmup is about a critic"),
        ({"objective.critic_model": "some/model"}, "critic_model is about a critic"),
        ({"model.task": "value"}, "needs token_logps"),
        ({"objective.critic": "separate", "model.value_head": True}, "does not train one"),
    ],
)
def test_what_a_shared_critic_cannot_have_is_refused_before_weights_load(
    tied: Path, rewards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr("swift.train.prepare.load_model", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(SwiftError, match=said):
        run_training(tied, tmp_path, ROWS, settings(rewards, **{**SHARED, **changes}))

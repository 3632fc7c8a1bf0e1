"""A critic on the policy's own layers: its numbers, and where its head is kept and where it is left out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import numpy as np
import pytest
import torch
from peft import PeftModel
from processes import on_processes, succeeded
from safetensors.torch import load_file
from test_ppo_rounds import settings
from test_rounds import ROWS, learned, rounds
from tiers import tiered
from tiny_runs import Trained, run_training
from transformers import AutoModelForCausalLM

from swift.checkpoint import open_checkpoint
from swift.errors import SwiftError
from swift.models.files import SafetensorsFolder
from swift_rl.testing import CASES
from swift_testing import Layout
from swift_testing.checks import near
from swift_testing.trials import Trials

SHARED = {"objective.critic": "shared", "objective.vf_coef": 0.5, "optim.warmup_steps": 0}
HEAD = "model.value_head.weight"
LORA = {"tuner.kind": "lora", "tuner.rank": 4, "optim.lr": 2e-3}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp": (2, {"backend.name": "fsdp"}),
    "zero3": (2, {"backend.name": "deepspeed", "backend.config": "zero3"}),
    "megatron tp 2": (2, {"backend.name": "megatron", "parallel.tp": 2}),
}


def test_shared_critic_resumes_and_head_is_not_exported(tied: Path, rewards: Path, tmp_path: Path) -> None:
    """A run with a head on the policy is resumed to the same bits and leaves the head out of what others load."""
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

    # What the critic said of the completions of the second round, from the weights of its first step alone.
    model = AutoModelForCausalLM.from_pretrained(whole.folder / "checkpoint-4", dtype=torch.float32)
    head, made = saved.read(HEAD), rounds(whole)[1]
    for completion in made.completions:
        prompt = made.prompts[completion.prompt].token_ids
        ids = torch.tensor(np.concatenate([prompt, completion.token_ids])[None].astype("int64"))
        values = (model.model(ids).last_hidden_state @ head.T)[0, len(prompt) - 1 : -1, 0]
        assert completion.old_values == pytest.approx(values.detach().numpy(), abs=1e-5)


def test_shared_critic_head_is_trained_with_adapters(tied: Path, rewards: Path, tmp_path: Path) -> None:
    """Next to adapters the head is trained whole and in no adapter that others load."""
    exported = tmp_path / "exported"
    to_adapter = {"export.to": "adapter", "export.out": str(exported)}
    whole = run_training(tied, tmp_path, ROWS, settings(rewards, **SHARED, **LORA, **to_adapter))
    resume = {"checkpoint.resume": str(whole.folder / "checkpoint-2"), "logging.run_name": "resumed"}
    rest = run_training(tied, tmp_path, ROWS, settings(rewards, **SHARED, **LORA, **resume))
    assert learned(rest) == learned(whole, after=2)
    assert len(learned(rest)) == 6
    assert whole.lines[4]["critic/loss"] < whole.lines[1]["critic/loss"]

    folder = whole.folder / "checkpoint-4"
    saved = open_checkpoint(folder)
    assert {HEAD, "optim.value_head.weight.exp_avg"} < set(saved.names())
    head = saved.read(HEAD)
    assert (head - open_checkpoint(whole.folder / "checkpoint-1").read(HEAD)).abs().max() > 1e-5
    for each in (exported, folder):
        assert not [name for name in load_file(each / "adapter_model.safetensors") if "value_head" in name]
        assert "value_head" not in (each / "adapter_config.json").read_text()

    # PEFT's own model with the adapter, and the head: what policy and critic said when the second round began.
    base = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
    model, made = PeftModel.from_pretrained(base, str(folder)), rounds(whole)[1]
    for completion in made.completions:
        prompt = made.prompts[completion.prompt].token_ids
        ids = torch.tensor(np.concatenate([prompt, completion.token_ids])[None].astype("int64"))
        values = (base.model(ids).last_hidden_state @ head.T)[0, len(prompt) - 1 : -1, 0]
        assert completion.old_values == pytest.approx(values.detach().numpy(), abs=1e-5)
        logps = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
        assert completion.old_logps == pytest.approx(logps.detach().numpy(), abs=1e-5)


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


@pytest.mark.parametrize("backend", tiered(LAYOUTS, (), ("zero3",)))
def test_shared_critic_resumes_mid_round_elsewhere(tied: Path, rewards: Path, tmp_path: Path, backend: str) -> None:
    """A run is resumed in the middle of a round on another backend."""
    processes, schedule = LAYOUTS[backend]
    tuned = {"full": {}, "lora": LORA, "separate": {"objective.critic": "separate"}}
    begun = [partial(trained, tied, tmp_path / name, rewards, tuner) for name, tuner in tuned.items()]
    whole = [succeeded(each)[0] for each in on_processes(1, *begun)]
    resumed = [
        partial(
            trained, tied, tmp_path / f"{name}-rest", rewards,
            {**tuner, **schedule, "checkpoint.resume": str(run.folder / "checkpoint-2")},
        )
        for (name, tuner), run in zip(tuned.items(), whole, strict=True)
    ]  # fmt: skip
    rest = [succeeded(each)[0] for each in on_processes(processes, *resumed)]
    for tuner, mine, theirs in zip(tuned, rest, whole, strict=True):
        for name in ("loss", "grad_norm", "critic/loss", "explained_variance"):
            found, expected = ([line[name] for step, line in run.lines.items() if step > 2] for run in (mine, theirs))
            assert len(found) == 4
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-6), (tuner, name)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective.critic_lr": 1e-3}, "critic_lr needs critic separate"),
        ({"objective.critic_warmup": 2}, "critic_warmup needs critic separate"),
        ({"objective.critic_model": "some/model"}, "critic_model needs critic separate"),
        ({"model.task": "value"}, "needs token_logps"),
        ({"objective.critic": "separate", "model.value_head": True}, "does not train a value head"),
    ],
)
def test_unsupported_shared_critic_is_refused_early(
    tied: Path, rewards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    """What a shared critic cannot have is refused before weights load."""
    monkeypatch.setattr("swift.train.prepare.load_model", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(SwiftError, match=said):
        run_training(tied, tmp_path, ROWS, settings(rewards, **{**SHARED, **changes}))

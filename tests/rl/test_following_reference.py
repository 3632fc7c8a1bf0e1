"""A reference that follows the policy: the mixture of the weights that checkpoints hold, on every backend."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import numpy as np
import pytest
import torch
from processes import on_processes, succeeded
from test_rounds import ROWS, learned, rounds, settings
from tiny_runs import Trained, run_training
from transformers import AutoModelForCausalLM

from swift.checkpoint import open_checkpoint
from swift.checkpoint.load import facts_of
from swift.errors import SwiftError

FOLLOWS = {
    "objective.beta": 0.5,
    "objective.sync_ref_model": True,
    "objective.ref_model_sync_steps": 2,
    "objective.ref_model_mixup_alpha": 0.3,
    "train.max_steps": 5,
    "optim.warmup_steps": 0,
    "optim.lr": 5e-3,
}
ZERO3 = {"backend.name": "deepspeed", "backend.config": "zero3"}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp": (2, {"backend.name": "fsdp"}),
    "zero3": (2, ZERO3),
    "megatron tp 2 pp 2": (4, {"backend.name": "megatron", "parallel.tp": 2, "parallel.pp": 2}),
}


def weights_of(folder: Path, role: str | None = None) -> dict[str, torch.Tensor]:
    """The weights that a checkpoint holds of the policy, or of another role."""
    reader = open_checkpoint(folder)
    reader = reader if role is None else reader.for_role(role)
    return {name: reader.read(name) for name in reader.names() if name.startswith("model.")}


def mixture(of: dict[str, torch.Tensor], towards: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: 0.7 * before + 0.3 * towards[name] for name, before in of.items()}


def test_ema_reference_survives_resume(tied: Path, rewards: Path, tmp_path: Path) -> None:
    """The reference is the mixture and a resumed run has the same one."""
    whole = run_training(tied, tmp_path, ROWS, settings(rewards, **FOLLOWS))
    saved = [whole.folder / f"checkpoint-{step}" for step in range(1, 6)]
    assert list(facts_of(saved[0]).roles) == ["reference"]
    begun = weights_of(saved[0], "reference")
    model = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
    for name, tensor in model.state_dict().items():
        if f"model.{name}" in begun:
            assert torch.equal(begun[f"model.{name}"], tensor)
    first = mixture(begun, weights_of(saved[1]))
    second = mixture(first, weights_of(saved[3]))
    for step, expected in ((2, begun), (3, first), (4, first), (5, second)):
        found = weights_of(saved[step - 1], "reference")
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=3e-7)
    assert max(float((first[name] - begun[name]).abs().max()) for name in begun) > 1e-4

    # What the reference says of the completions of the third round is what a plain model with these weights says.
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in first.items()}, strict=False)
    made = rounds(whole)[2]
    for completion in made.completions:
        prompt = made.prompts[completion.prompt].token_ids
        ids = torch.tensor(np.concatenate([prompt, completion.token_ids])[None].astype("int64"))
        logps = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
        assert completion.ref_logps == pytest.approx(logps.detach().numpy(), abs=1e-5)

    for step in (2, 3):  # before it follows for the first time, and after
        resume = {"checkpoint.resume": str(saved[step - 1]), "logging.run_name": f"resumed-{step}"}
        rest = run_training(tied, tmp_path, ROWS, settings(rewards, **FOLLOWS, **resume))
        assert learned(rest) == learned(whole, after=step)
        for name, tensor in weights_of(rest.folder / "checkpoint-5", "reference").items():
            assert torch.equal(tensor, weights_of(saved[4], "reference")[name])


def trained(model: Path, out: Path, rewards: Path, changes: dict[str, Any]) -> Trained:
    few = {"train.max_steps": 4, "checkpoint.save_steps": 4, "train.micro_batch": 2, "optim.eps": 1e-6}
    return run_training(model, out, ROWS, settings(rewards, **{**FOLLOWS, **few, **changes}))


@pytest.fixture(scope="module")
def alone(tied: Path, rewards: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The run of one process."""
    return succeeded(on_processes(1, partial(trained, tied, tmp_path_factory.mktemp("torch"), rewards, {}))[0])[0]


@pytest.mark.full
@pytest.mark.parametrize("backend", LAYOUTS)
def test_every_backend_has_the_same_following_reference(
    tied: Path, rewards: Path, alone: Trained, tmp_path: Path, backend: str
) -> None:
    processes, schedule = LAYOUTS[backend]
    run = succeeded(on_processes(processes, partial(trained, tied, tmp_path / "runs", rewards, schedule))[0])[0]
    ours, theirs = (weights_of(each.folder / "checkpoint-4", "reference") for each in (run, alone))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-5)
    for name in ("loss", "grad_norm", "kl"):
        found, expected = ([line[name] for line in each.lines.values()] for each in (run, alone))
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6), name
    assert [run.lines[1][name] for name in ("kl", "approx_kl", "ratio")] == [0, 0, 1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tuner.kind": "lora"}, "no effect with new adapters"),
        ({"tuner.kind": "lora", "tuner.bias": "all"}, "cannot mix adapters"),
        ({"objective.beta": 0.0}, "but beta is 0"),
        ({"objective.sync_ref_model": False}, "needs sync_ref_model true"),
        ({"objective.name": "ppo", "objective.kl_coef": 0.0}, "but kl_coef is 0"),
    ],
)
def test_what_cannot_follow_is_refused_before_weights_load(
    tied: Path, rewards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr("swift.train.prepare.load_model", lambda *_: pytest.fail("weights were loaded"))
    chosen = settings(rewards, **{**FOLLOWS, **changes})
    if chosen["objective.name"] == "ppo":
        del chosen["objective.beta"]
    with pytest.raises(SwiftError, match=said):
        run_training(tied, tmp_path, ROWS, chosen)

"""EVA and LoRA-GA: PEFT's own numbers, on every backend, with adapters that fit the model as it is on disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import plain_torch
import pytest
import torch
from adapters import LINEAR, ROWS, STEPS, adapter_of, assert_follows, assert_leaves, assert_same, logits
from peft import EvaConfig, LoraConfig, LoraGAConfig, get_peft_model
from peft.tuners.lora.eva import get_eva_state_dict
from peft.tuners.lora.loraga import preprocess_loraga
from plain_torch import batches_of, conversation_tokens, likelihood_trajectory, response_logp
from processes import on_processes, succeeded
from tiny_runs import Trained, pairs, run_training, write_model

from swift.errors import SwiftError

LORA: dict[str, Any] = {
    "tuner.kind": "lora",
    "tuner.rank": 4,
    "tuner.alpha": 8.0,
    "tuner.dropout": 0.0,
    "tuner.rank_pattern": {"q_proj": 2},
    "tuner.init_batches": 2,
    "optim.lr": 5e-3,
    "train.global_batch": 8,
    "train.max_steps": STEPS,
    "checkpoint.save_last": True,
}
SETTINGS: dict[str, Any] = {"r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 2}, "target_modules": LINEAR}


def trained(model: Path, out: Path, init: str, changes: dict[str, Any]) -> Trained:
    rows = pairs(16) if changes.get("objective.name") == "dpo" else ROWS
    return run_training(model, out, rows, {**LORA, "tuner.init": init, "logging.run_name": init, **changes})


@pytest.mark.full
def test_eva_begins_with_the_directions_that_peft_finds(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny", pad_token_id=None)  # whose singular values lie apart
    # The first step has a learning rate of 0: it saves what the adapters begin with.
    # PEFT gives layers with the same inputs the same rank.
    run = trained(model, tmp_path, "eva", {"checkpoint.save_steps": 1, "tuner.rank_pattern": {}})
    start = adapter_of(run, 1)
    eva = EvaConfig(rho=1.0, tau=0.0)  # no other ranks, and converged as soon as may be
    tuned = get_peft_model(
        plain_torch.load_model(model),
        LoraConfig(init_lora_weights="eva", eva_config=eva, **{**SETTINGS, "rank_pattern": {}}),
    )
    samples = conversation_tokens(model, ROWS)
    longest = max(len(question) + len(answer) for question, answer in samples)
    ids = [[*question, *answer, *[0] * (longest - len(question) - len(answer))] for question, answer in samples]
    labels = [
        [*[-100] * len(question), *answer, *[-100] * (longest - len(question) - len(answer))]
        for question, answer in samples
    ]
    batch = {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}
    found = get_eva_state_dict(tuned, [batch], show_progress_bar=False)
    assert len(found) == len(start) / 2, list(found)
    for name, value in found.items():
        mine = start[f"{name.removesuffix('.weight')}.lora_A.weight"]
        # A direction has two signs; PEFT has looked at the batch a second time, which moves them by a little.
        assert (mine * value).sum(1).abs().min() > 0.9999, name
    peft = {name.replace(".weight", ".default.weight"): value for name, value in start.items()}
    assert not tuned.load_state_dict(peft, strict=False).unexpected_keys
    assert_follows(run, tuned, model, falls=0.05)
    assert_leaves(run, model, logits(tuned), tmp_path)


@pytest.mark.full
def test_lora_ga_matches_peft_gradient_directions(tmp_path: Path) -> None:
    """LoRA-GA begins with the directions of the gradient that PEFT finds."""
    model = write_model(tmp_path / "tiny", pad_token_id=None)  # whose singular values lie apart
    run = trained(model, tmp_path, "lora_ga", {"checkpoint.save_steps": 1})
    base = plain_torch.load_model(model)
    config = LoraConfig(init_lora_weights="lora_ga", lora_ga_config=LoraGAConfig(), **SETTINGS)

    def train_step() -> None:
        for batch in batches_of(conversation_tokens(model, ROWS), 8, 2):
            weight = sum(len(answer) for _, answer in batch)
            for sample in batch:
                # PEFT divides by the passes; the mean of the two batches is meant.
                (-response_logp(base, sample) / weight * 8).backward()

    preprocess_loraga(base, config, train_step)
    torch.manual_seed(0)
    tuned = get_peft_model(base, config)
    same_signs(tuned, model, adapter_of(run, 1))
    assert_follows(run, tuned, model, falls=0.05)
    assert_leaves(run, model, logits(tuned), tmp_path)


@torch.no_grad()
def same_signs(tuned: Any, model: Path, start: dict[str, torch.Tensor]) -> None:
    """Give PEFT's directions the signs of these, after a look at whether they are the same otherwise."""
    weights = dict(plain_torch.load_model(model).named_parameters())
    for name, layer in tuned.named_modules():
        if not hasattr(layer, "lora_A"):
            continue
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        mine_a, mine_b = start[f"{name}.lora_A.weight"][: len(a)], start[f"{name}.lora_B.weight"][:, : len(a)]
        for theirs, mine in ((a, mine_a), (b.T, mine_b.T)):
            signs = (theirs * mine).sum(1, keepdim=True).sign()
            torch.testing.assert_close(theirs * signs, mine, rtol=1e-3, atol=1e-4, msg=name)
        a.copy_(mine_a)
        b.copy_(mine_b)
        whole = weights[f"{name.removeprefix('base_model.model.')}.weight"]
        layer.base_layer.weight.copy_(whole - layer.scaling["default"] * b @ a)


PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "two processes": ("lora_ga", {}),
    "fsdp": ("eva", {"backend.name": "fsdp"}),
    "zero 3": ("lora_ga", {"backend.name": "deepspeed", "backend.config": "zero3"}),
    "megatron": ("lora_ga", {"backend.name": "megatron", "parallel.tp": 2, "parallel.sequence_parallel": True}),
}


@pytest.mark.full
def test_every_backend_begins_where_the_data_points_and_resumes(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny")
    common: dict[str, Any] = {"optim.eps": 1e-6, "train.micro_batch": 2}
    saved = {**common, "checkpoint.save_steps": 2}
    alone = {init: trained(model, tmp_path / "torch", init, saved) for init in ("eva", "lora_ga")}
    cases = [partial(trained, model, tmp_path / name, init, {**common, **plan}) for name, (init, plan) in PLANS.items()]
    onwards = {**common, "backend.name": "fsdp", "checkpoint.resume": str(alone["lora_ga"].folder / "checkpoint-2")}
    *answers, again = on_processes(2, *cases, partial(trained, model, tmp_path / "again", "lora_ga", onwards))
    for (name, (init, _)), answer in zip(PLANS.items(), answers, strict=True):
        assert_same(succeeded(answer)[0], alone[init], name)
    assert succeeded(again)[0].losses == pytest.approx(alone["lora_ga"].losses[2:], rel=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_factors_survive_deepspeed_exact_masters(tmp_path: Path, stage: str) -> None:
    """Factors are still there when DeepSpeed reads exact masters."""
    model = write_model(tmp_path / "tiny")
    # The first update, at a learning rate of 0, puts the masters instead of the weights that were read.
    plan = {"backend.name": "deepspeed", "backend.config": stage, "model.dtype": "bfloat16", "train.max_steps": 2}
    run = trained(model, tmp_path, "lora_ga", plan)
    batches = batches_of(conversation_tokens(model, ROWS), 8, 2)
    base, _ = likelihood_trajectory(plain_torch.load_model(model), batches, steps=2, lr=0.0)
    assert run.losses == pytest.approx(base, rel=2e-3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tuner.init": "pissa"}, "tuner.init_batches needs"),
        ({"tuner.quantize": "bnb-nf4"}, "stores them quantized"),
        ({"objective.name": "dpo"}, "compares with other samples or a reference"),
        ({"tuner.targets": ["embed_tokens"], "tuner.init": "eva"}, "embed_tokens"),
    ],
)
def test_what_cannot_begin_where_the_data_points_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    model = write_model(tmp_path / "tiny")
    with pytest.raises(SwiftError, match=reason):
        trained(model, tmp_path, "lora_ga", changes)

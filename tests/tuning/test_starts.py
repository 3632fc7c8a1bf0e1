"""PiSSA and OLoRA: PEFT's numbers on every backend, and adapters that fit the model as it is on disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import bitsandbytes
import plain_torch
import pytest
import torch
from adapters import LINEAR, ROWS, STEPS, assert_follows, assert_leaves, assert_same, first_loss, logits
from peft import LoraConfig, PeftConfig, get_peft_model
from processes import on_processes, succeeded
from safetensors.torch import load_file
from tiny_runs import Trained, run_training, write_model

from swift.config.sections import ExportSection
from swift.errors import SwiftError
from swift.export.run import export_checkpoint
from swift.models.adapter_initialization import randomised_svd
from swift.models.names import generator_of

RANKS: dict[str, Any] = {
    "tuner.rank": 4,
    "tuner.alpha": 8.0,
    "tuner.rank_pattern": {"q_proj": 2},
    "tuner.alpha_pattern": {"v_proj": 4.0},
}
LORA: dict[str, Any] = {"tuner.kind": "lora", "optim.lr": 5e-3, "train.max_steps": STEPS}
LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp tp": {"backend.name": "fsdp", "parallel.tp": 2},
    "zero 3": {"backend.name": "deepspeed", "backend.config": "zero3"},
    "megatron": {"backend.name": "megatron", "parallel.tp": 2, "parallel.sequence_parallel": True},
    "megatron pp": {"backend.name": "megatron", "parallel.pp": 2},
}
RESUMED = ("fsdp tp", "zero 3", "megatron pp")


def trained(model: Path, out: Path, name: str, changes: dict[str, Any]) -> Trained:
    return run_training(model, out, ROWS, {**LORA, "train.global_batch": 8, "logging.run_name": name, **changes})


@pytest.mark.full
@pytest.mark.parametrize(
    ("init", "rslora"), [("pissa", False), ("olora", True)], ids=["pissa", "olora with rank-stabilised scale"]
)
def test_weight_initialized_adapters_match_peft_and_export_lora(tmp_path: Path, init: str, rslora: bool) -> None:
    """Adapters that begin in the weights follow PEFT and leave as plain LoRA."""
    model = write_model(tmp_path / "tiny")
    changes = {**RANKS, "tuner.init": init, "tuner.rslora": rslora, "checkpoint.save_last": True}
    run = trained(model, tmp_path, init, changes)
    options: dict[str, Any] = {"r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 4}}
    config = LoraConfig(target_modules=LINEAR, init_lora_weights=init, use_rslora=rslora, **options)
    tuned = get_peft_model(plain_torch.load_model(model), config)
    assert_follows(run, tuned, model, falls=0.1)
    assert PeftConfig.from_pretrained(run.folder / f"checkpoint-{STEPS}").init_lora_weights is True
    assert_leaves(run, model, logits(tuned), tmp_path, adapter=True)


def layouts_trained(model: Path, out: Path, plan: dict[str, Any], **changes: Any) -> Trained:
    settings = {**RANKS, "tuner.init": "pissa_niter_4", "optim.eps": 1e-6, "train.micro_batch": 4, **plan, **changes}
    return trained(model, out, "run", settings)


@pytest.mark.full
def test_every_backend_begins_in_the_weights_alike_and_resumes(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny")
    saved = {"checkpoint.save_steps": 2, "checkpoint.save_last": True}
    alone = layouts_trained(model, tmp_path / "torch", {}, **saved)
    resumed = {"checkpoint.resume": str(alone.folder / "checkpoint-2")}
    fresh = [partial(layouts_trained, model, tmp_path / name, plan, **saved) for name, plan in LAYOUTS.items()]
    onwards = [partial(layouts_trained, model, tmp_path / f"{name} on", LAYOUTS[name], **resumed) for name in RESUMED]
    answers = on_processes(2, *fresh, *onwards)
    for name, answer in zip((*LAYOUTS, *RESUMED), answers, strict=True):
        run = succeeded(answer)[0]
        if len(run.losses) == STEPS:
            assert_same(run, alone, name)
        else:
            assert run.losses == pytest.approx(alone.losses[2:], rel=1e-4), name


@pytest.mark.full
def test_loftq_matches_one_process_with_sharded_weights(tmp_path: Path) -> None:
    """LoftQ has the numbers of one process where weights are sharded."""
    model = write_model(tmp_path / "tiny", **WIDE)
    settings = {**FOUR_BITS, "tuner.init": "loftq", "optim.eps": 1e-6, "checkpoint.save_last": True}
    plans: dict[str, dict[str, Any]] = {
        "fsdp": {"backend.name": "fsdp"},
        "zero 3": {"backend.name": "deepspeed", "backend.config": "zero3"},
    }
    alone = trained(model, tmp_path / "torch", "run", settings)
    answers = on_processes(
        2, *[partial(trained, model, tmp_path / name, "run", {**settings, **plan}) for name, plan in plans.items()]
    )
    for name, answer in zip(plans, answers, strict=True):
        assert_same(succeeded(answer)[0], alone, name)


def test_a_randomised_decomposition_finds_the_largest_directions() -> None:
    weight = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(weight)
    found_left, found, found_right = randomised_svd(weight, 14, 30, generator_of(7, "weight"))
    torch.testing.assert_close(found[:4], values[:4])
    assert ((found_left.T @ left).diagonal()[:4] * (found_right @ right.T).diagonal()[:4]).min() > 0.999
    rough = randomised_svd(weight, 14, 1, generator_of(7, "weight"))[1]
    assert not torch.allclose(rough[:4], values[:4])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tuner.dora": True}, "tuner.dora"),
        ({"tuner.quantize": "bnb-nf4"}, "stores them quantized"),
        ({"tuner.init": "loftq"}, "tuner.quantize is none"),
        ({"tuner.targets": ["embed_tokens", "q_proj"]}, "embed_tokens"),
        ({"tuner.init_iterations": 3, "tuner.init": "olora"}, "init_iterations"),
    ],
)
def test_what_does_not_go_with_such_a_start_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    model = write_model(tmp_path / "tiny")
    with pytest.raises(SwiftError, match=reason):
        trained(model, tmp_path, "refused", {"tuner.init": "pissa", **changes})


def test_excess_rank_starts_at_base_model(tmp_path: Path) -> None:
    """A rank beyond the directions of a weight begins at the base model too."""
    model = write_model(tmp_path / "tiny")
    run = trained(model, tmp_path, "wide", {"tuner.init": "olora", "tuner.rank": 200, "train.max_steps": 2})
    assert run.losses[0] == pytest.approx(first_loss(model), rel=1e-5)


WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
FOUR_BITS: dict[str, Any] = {"tuner.quantize": "bnb-nf4", "tuner.dropout": 0.0, "tuner.rank": 128, "tuner.alpha": 64.0}


@pytest.mark.full
def test_loftq_starts_with_best_factors_of_error(tmp_path: Path) -> None:
    """LoftQ begins with the best factors of what four bits lose."""
    model = write_model(tmp_path / "tiny", **WIDE)
    base = first_loss(model)
    losses = {}
    for init in ("default", "loftq"):
        changes = {"tuner.init": init, "checkpoint.save_steps": 1, "train.max_steps": 2}
        run = trained(model, tmp_path, init, {**FOUR_BITS, **changes})
        losses[init] = run.losses
    assert abs(losses["loftq"][0] - base) < 0.5 * abs(losses["default"][0] - base)

    # At a learning rate of 0 the plain adapter on the model in full precision adds nothing yet.
    saved = load_file(run.folder / "checkpoint-1" / "adapter_model.safetensors")
    name = "base_model.model.model.layers.0.mlp.up_proj"
    a, b = saved[f"{name}.lora_A.weight"], saved[f"{name}.lora_B.weight"]
    assert a.shape[0] == 256
    assert (b @ a).abs().max() < 1e-6
    weight = load_file(model / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    codes, state = bitsandbytes.functional.quantize_4bit(
        weight, blocksize=64, quant_type="nf4", compress_statistics=True, quant_storage=torch.float32
    )
    lost = weight - bitsandbytes.functional.dequantize_4bit(codes, state)
    u, s, v = torch.linalg.svd(lost)
    torch.testing.assert_close(0.5 * b[:, :128] @ a[:128], u[:, :128] * s[:128] @ v[:128], rtol=1e-4, atol=1e-6)

    out = export_checkpoint(
        run.folder / "checkpoint-2", to="hf", options=ExportSection(out=tmp_path / "hf"), say=lambda _: None
    )
    after = logits(plain_torch.load_model(out)) - logits(plain_torch.load_model(model))
    assert after.abs().max() > 0

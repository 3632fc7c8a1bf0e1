"""PiSSA and OLoRA: PEFT's numbers on every backend, and adapters that fit the model as it is on disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import bitsandbytes
import plain_torch
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from plain_torch import batches_of, conversation_tokens, likelihood_trajectory
from processes import on_processes, succeeded
from safetensors.torch import load_file
from tiny_runs import Trained, conversations, run_training, write_model

from swift.config.sections import ExportSection
from swift.errors import SwiftError
from swift.export.run import export_checkpoint

STEPS = 5
ROWS = conversations(16)
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANKS: dict[str, Any] = {
    "tuner.rank": 4,
    "tuner.alpha": 8.0,
    "tuner.rank_pattern": {"q_proj": 2},
    "tuner.alpha_pattern": {"v_proj": 4.0},
}
LORA: dict[str, Any] = {"tuner.kind": "lora", "optim.lr": 5e-3, "train.max_steps": STEPS}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp": (2, {"backend.name": "fsdp"}),
    "fsdp tp": (2, {"backend.name": "fsdp", "parallel.tp": 2}),
    "zero 2": (2, {"backend.name": "deepspeed", "backend.config": "zero2"}),
    "zero 3": (2, {"backend.name": "deepspeed", "backend.config": "zero3"}),
    "megatron": (2, {"backend.name": "megatron", "parallel.tp": 2, "parallel.sequence_parallel": True}),
    "megatron pp": (2, {"backend.name": "megatron", "parallel.pp": 2}),
}


def expected(model: Path, init: str, **settings: Any) -> tuple[list[float], list[float], Any]:
    """What PEFT and plain torch make of it."""
    base = plain_torch.load_model(model)
    options: dict[str, Any] = {"r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 4}}
    tuned = get_peft_model(base, LoraConfig(target_modules=LINEAR, init_lora_weights=init, **options, **settings))
    batches = batches_of(conversation_tokens(model, ROWS), 8, STEPS)
    return *likelihood_trajectory(tuned, batches, steps=STEPS, lr=5e-3), tuned


def trained(model: Path, out: Path, name: str, changes: dict[str, Any]) -> Trained:
    return run_training(model, out, ROWS, {**LORA, "train.global_batch": 8, "logging.run_name": name, **changes})


def first_loss(model: Path) -> float:
    """Of the model before training."""
    losses, _ = likelihood_trajectory(
        plain_torch.load_model(model), batches_of(conversation_tokens(model, ROWS), 8, 1), steps=1
    )
    return losses[0]


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    found: torch.Tensor = model.eval()(input_ids=torch.arange(5, 25)[None]).logits
    return found


@pytest.mark.full
@pytest.mark.parametrize(
    ("init", "rslora"), [("pissa", False), ("olora", True)], ids=["pissa", "olora with rank-stabilised scale"]
)
def test_weight_initialized_adapters_match_peft_and_export_lora(tmp_path: Path, init: str, rslora: bool) -> None:
    """Adapters that begin in the weights follow PEFT and leave as plain LoRA."""
    model = write_model(tmp_path / "tiny")
    changes = {**RANKS, "tuner.init": init, "tuner.rslora": rslora, "checkpoint.save_last": True}
    run = trained(model, tmp_path, init, changes)
    losses, norms, tuned = expected(model, init, use_rslora=rslora)
    assert run.losses == pytest.approx(losses, rel=1e-5)
    assert run.grad_norms == pytest.approx(norms, rel=1e-5)
    assert run.losses[0] == pytest.approx(first_loss(model), rel=1e-5)
    assert losses[-1] < losses[0] - 0.1

    checkpoint = run.folder / f"checkpoint-{STEPS}"
    after = logits(tuned)
    reloaded = PeftModel.from_pretrained(plain_torch.load_model(model), checkpoint)
    assert reloaded.peft_config["default"].init_lora_weights is True
    torch.testing.assert_close(logits(reloaded), after, rtol=1e-4, atol=1e-4)
    said: list[str] = []
    for to in ("adapter", "hf"):
        out = export_checkpoint(checkpoint, to=to, options=ExportSection(out=tmp_path / to), say=said.append)
        loaded = PeftModel.from_pretrained(plain_torch.load_model(model), out) if to == "adapter" else None
        torch.testing.assert_close(logits(loaded or plain_torch.load_model(out)), after, rtol=1e-4, atol=1e-4)


def layouts_trained(model: Path, out: Path, plan: dict[str, Any], **changes: Any) -> Trained:
    settings = {**RANKS, "tuner.init": "pissa_niter_4", "optim.eps": 1e-6, "train.micro_batch": 4, **plan, **changes}
    return trained(model, out, "run", settings)


@pytest.mark.full
def test_every_backend_begins_in_the_weights_alike_and_resumes(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny")
    saved = {"checkpoint.save_steps": 2, "checkpoint.save_last": True}
    alone = layouts_trained(model, tmp_path / "torch", {}, **saved)
    resumed = {"checkpoint.resume": str(alone.folder / "checkpoint-2")}
    whole = load_file(alone.folder / f"checkpoint-{STEPS}" / "adapter_model.safetensors")
    by_size: dict[int, list[str]] = {}
    for name, (processes, _) in LAYOUTS.items():
        by_size.setdefault(processes, []).append(name)
    for processes, names in by_size.items():
        fresh = [partial(layouts_trained, model, tmp_path / name, LAYOUTS[name][1], **saved) for name in names]
        onwards = [
            partial(layouts_trained, model, tmp_path / f"{name} again", LAYOUTS[name][1], **resumed) for name in names
        ]
        answers = on_processes(processes, *fresh, *onwards)
        for name, first, second in zip(names, answers[: len(names)], answers[len(names) :], strict=True):
            run, again = succeeded(first)[0], succeeded(second)[0]
            assert run.losses == pytest.approx(alone.losses, rel=1e-4), name
            assert run.grad_norms == pytest.approx(alone.grad_norms, rel=1e-4), name
            assert again.losses == pytest.approx(alone.losses[2:], rel=1e-4), name
            found = load_file(run.folder / f"checkpoint-{STEPS}" / "adapter_model.safetensors")
            assert found.keys() == whole.keys(), name
            for key, value in whole.items():
                torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-4, msg=f"{name}: {key}")


@pytest.mark.full
def test_loftq_matches_one_process_with_sharded_weights(tmp_path: Path) -> None:
    """LoftQ has the numbers of one process where weights are sharded."""
    model = write_model(tmp_path / "tiny", **WIDE)
    settings = {**FOUR_BITS, "tuner.init": "loftq", "optim.eps": 1e-6, "checkpoint.save_last": True}
    plans: dict[str, dict[str, Any]] = {
        "two processes": {},
        "fsdp": {"backend.name": "fsdp"},
        "zero 3": {"backend.name": "deepspeed", "backend.config": "zero3"},
    }
    alone = trained(model, tmp_path / "torch", "run", settings)
    answers = on_processes(
        2, *[partial(trained, model, tmp_path / name, "run", {**settings, **plan}) for name, plan in plans.items()]
    )
    whole = load_file(alone.folder / f"checkpoint-{STEPS}" / "adapter_model.safetensors")
    for name, answer in zip(plans, answers, strict=True):
        run = succeeded(answer)[0]
        assert run.losses == pytest.approx(alone.losses, rel=1e-4), name
        found = load_file(run.folder / f"checkpoint-{STEPS}" / "adapter_model.safetensors")
        for key, value in whole.items():
            torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-4, msg=f"{name}: {key}")


@pytest.mark.full
def test_a_randomised_decomposition_finds_the_largest_directions(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny")
    exact = trained(model, tmp_path, "exact", {"tuner.init": "pissa", "train.max_steps": 3})
    near = trained(model, tmp_path, "near", {"tuner.init": "pissa_niter_30", "train.max_steps": 3})
    plain = trained(model, tmp_path, "plain", {"tuner.dropout": 0.0, "train.max_steps": 3})
    assert near.losses == pytest.approx(exact.losses, rel=1e-4)
    assert plain.losses[-1] != pytest.approx(exact.losses[-1], rel=1e-4)


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
        run = trained(model, tmp_path, init, {**FOUR_BITS, "tuner.init": init, "checkpoint.save_steps": 1})
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
        run.folder / f"checkpoint-{STEPS}", to="hf", options=ExportSection(out=tmp_path / "hf"), say=lambda _: None
    )
    after = logits(plain_torch.load_model(out)) - logits(plain_torch.load_model(model))
    assert after.abs().max() > 0

"""Routers of architectures: how a small copy shows them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import conversations, run_training, write_model
from tiny_types import tiny_model, write_tiny

from swift.config.own_options import FullOptions
from swift.errors import ConfigError
from swift.models.router_losses import balance_loss, load_metrics
from swift.models.routers import RouterKind, kind_of
from swift.models.tuners import freeze_by_pattern

KINDS: dict[str, RouterKind | None] = {
    "qwen3_moe": RouterKind("softmax", None),
    "granitemoe": RouterKind("softmax", None),
    "gpt_oss": RouterKind("softmax", None),
    "deepseek_v3": RouterKind("sigmoid", "e_score_correction_bias"),
    "minimax_m2": RouterKind("sigmoid", "../e_score_correction_bias"),
    "ernie4_5_moe": RouterKind("softmax", "moe_statics.e_score_correction_bias"),
    "deepseek_v4": RouterKind("sqrtsoftplus", "e_score_correction_bias"),
    "phimoe": RouterKind(None, None),
    "jamba": None,
    "llama": None,
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "dense": ("llama", {"train.router_aux_loss": 0.1}, "LlamaForCausalLM has no routers"),
    "without choices": ("jamba", {"train.router_z_loss": 0.1}, "do not show logits and chosen experts"),
    "unknown scores": ("phimoe", {"train.router_aux_loss": 0.1}, "scoring function that swift does not know"),
    "without bias": ("qwen3_moe", {"train.router_bias_rate": 0.1}, "have no bias"),
    "bias is a weight": ("ernie4_5_moe", {"train.router_bias_rate": 0.1}, "keeps the bias of routers as a weight"),
    "adapters": (
        "deepseek_v3",
        {"train.router_bias_rate": 0.1, "tuner.kind": "lora"},
        "a part of the model that adapters do not hold",
    ),
    "compiled": ("qwen3_moe", {"train.router_aux_loss": 0.1, "train.compile": True}, "compiled layers"),
    "nothing to freeze": ("llama", {"tuner.freeze_router": True}, "has no router"),
}


@pytest.mark.parametrize("name", KINDS)
def test_kind_of_routers_is_found_by_trial(name: str) -> None:
    """The scoring function and the bias are those of the architecture's code, without a table of architectures."""
    assert kind_of(tiny_model(name)) == KINDS[name]


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_router_options_are_refused(tmp_path: Path, case: str) -> None:
    """What a model cannot do is refused before training, with the reason and the flag to type."""
    name, settings, reason = REFUSED[case]
    with pytest.raises(ConfigError, match=reason) as refused:
        run_training(write_tiny(name, tmp_path / name), tmp_path, conversations(4), settings)
    assert refused.value.hint


def test_frozen_routers_stay_and_adapters_avoid_them(tmp_path: Path) -> None:
    """Full training leaves routers as they are, and adapters named for them are left out."""
    model = write_tiny("jamba", tmp_path / "jamba")
    settings = {
        "train.max_steps": 1,
        "optim.warmup_steps": 0,
        "checkpoint.save_last": True,
        "tuner.freeze_router": True,
    }
    run_training(model, tmp_path, conversations(4), settings)
    before = load_file(model / "model.safetensors")
    after = load_file(tmp_path / "jamba/run/last-checkpoint/model.safetensors")
    routers = {name for name in before if ".router." in name}
    assert routers
    assert all(torch.equal(before[name], after[name]) for name in routers)
    assert len(routers) < len([name for name in before if not torch.equal(before[name], after[name])])
    for frozen in (False, True):
        changes = {"tuner.kind": "lora", "tuner.freeze_router": frozen, "logging.run_name": f"lora-{frozen}"}
        changes["tuner.targets"] = ["router", "q_proj"]
        run_training(model, tmp_path, conversations(4), {**settings, **changes})
        names = load_file(tmp_path / f"jamba/lora-{frozen}/last-checkpoint/adapter_model.safetensors")
        assert any(".router." in name for name in names) != frozen


def test_biases_that_are_weights_are_not_trained() -> None:
    """What the code of an architecture keeps from being trained stays so: ERNIE's biases, which decay would change."""
    model = tiny_model("ernie4_5_moe")
    for options in (FullOptions(), FullOptions(freeze=("*.q_proj.weight",))):
        freeze_by_pattern(model, options)
        untrained = {name for name, weight in model.named_parameters() if not weight.requires_grad}
        ends = {name.rpartition("layers.")[2].partition(".")[2] for name in untrained}
        assert ends - {"self_attn.q_proj.weight"} == {"mlp.gate.moe_statics.e_score_correction_bias"}


def test_losses_are_of_training_steps_only(tmp_path: Path) -> None:
    """An evaluation is that of a run without router losses, and dense models have no load."""
    model = write_tiny("qwen3_moe", tmp_path / "moe")
    settings = {"train.max_steps": 1, "train.eval_on_start": True}
    rows = conversations(4)
    lines = {}
    for name, weight in (("plain", 0.0), ("balanced", 10.0)):
        changes = {**settings, "train.router_aux_loss": weight, "logging.run_name": name}
        lines[name] = run_training(model, tmp_path, rows, changes, validation=rows).lines
    assert lines["balanced"][0] == pytest.approx(lines["plain"][0])
    assert lines["balanced"][1]["loss"] == pytest.approx(lines["plain"][1]["loss"])
    assert lines["balanced"][1]["grad_norm"] > 1.1 * lines["plain"][1]["grad_norm"]
    assert "router_aux_loss" not in lines["plain"][1]
    assert not any(name.startswith("eval_") and "router" in name for name in lines["balanced"][1])
    quiet = run_training(model, tmp_path, rows, {"train.max_steps": 1, "logging.expert_load": False})
    dense = run_training(write_model(tmp_path / "dense"), tmp_path, rows, {"train.max_steps": 1})
    assert not any(name.startswith("expert_load") for run in (quiet, dense) for name in run.lines[1])
    assert "expert_load/max" in lines["plain"][1]


def test_balance_loss_is_one_where_balanced() -> None:
    """Equal scores give one for each token, whatever their number; all tokens to one expert give the most."""
    ids = torch.tensor([[0, 0, 0, 0, 1, 1, -1, -1]])
    logits = torch.eye(4).repeat(2, 1) * 1e-4
    balanced = balance_loss(logits[[0, 1, 2, 3, 0, 1, 0, 0]], 1, ids, 2, scoring="softmax")
    # Four tokens to four experts, and two to two of them.
    assert float(balanced) == pytest.approx(4 + 2, rel=1e-3)
    alone = balance_loss(torch.tensor([[50.0, 0.0, 0.0, 0.0]]).repeat(8, 1), 1, ids, 2, scoring="softmax")
    assert float(alone) == pytest.approx(6 * 4)


def test_load_metrics_leave_out_layers_without_routers() -> None:
    load = torch.tensor([[0.0, 0, 0, 0], [5, 5, 5, 5], [10, 10, 0, 0]])
    found = load_metrics(load)
    assert found == pytest.approx({"expert_load/max": 2.0, "expert_load/entropy": 0.75, "expert_load/unused": 2.0})
    assert load_metrics(load[:1]) == {}

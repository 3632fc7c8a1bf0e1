"""LoRA on routed experts: one process's numbers in every layout, resumed between backends, merged, read by PEFT."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import plain_torch
import pytest
import torch
from adapters import ROWS, adapter_of, assert_leaves, assert_same, logits
from peft import PeftModel
from processes import on_processes, succeeded
from tiny_runs import Trained, run_training
from tiny_types import write_tiny

STEPS = 4
SETTINGS: dict[str, Any] = {
    "tuner.kind": "lora",
    "tuner.rank": 4,
    "tuner.targets": ["o_proj", "experts"],
    # Updates in proportion to gradients, and these clipped hard: a wrong norm on one process shows in its experts.
    "optim.lr": 0.3,
    "optim.eps": 0.1,
    "optim.max_grad_norm": 0.5,
    "train.max_steps": STEPS,
    "train.global_batch": 8,
    "checkpoint.save_steps": 2,
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp": (2, {"backend.name": "fsdp"}),
    "zero 2": (2, {"backend.name": "deepspeed", "backend.config": "zero2"}),
    "zero 3": (2, {"backend.name": "deepspeed", "backend.config": "zero3"}),
    "megatron, dp 2": (2, {"backend.name": "megatron", "parallel.dp_shard": 2}),
    "megatron, tp 2": (2, {"backend.name": "megatron", "parallel.tp": 2}),
    "megatron, pp 2": (2, {"backend.name": "megatron", "parallel.pp": 2}),
    "megatron, ep 2": (2, {"backend.name": "megatron", "parallel.ep": 2}),
    "megatron, tp 2, ep 2": (4, {"backend.name": "megatron", "parallel.tp": 2, "parallel.ep": 2}),
    "megatron, pp 2, ep 2": (4, {"backend.name": "megatron", "parallel.pp": 2, "parallel.ep": 2}),
}
TYPES = {"qwen3_moe": tuple(LAYOUTS), "deepseek_v3": ("megatron, tp 2", "megatron, pp 2", "megatron, ep 2")}


def trained(model: Path, out: Path, changes: dict[str, Any]) -> Trained:
    return run_training(model, out, ROWS, {**SETTINGS, **changes})


@pytest.mark.full
@pytest.mark.parametrize("kind", TYPES)
def test_adapters_on_experts_match_on_every_backend(tmp_path: Path, kind: str) -> None:
    """Losses, norms and adapters are those of one process, which are PEFT's; a run goes on elsewhere."""
    model = write_tiny(kind, tmp_path / "tiny")
    (alone,) = succeeded(on_processes(1, partial(trained, model, tmp_path / "torch", {}))[0])
    assert alone.losses[-1] < alone.losses[0] - 0.02
    assert any("experts.base_layer.lora_A" in name for name in adapter_of(alone, STEPS))

    found: dict[str, Trained] = {}
    for size in (2, 4):
        names = [name for name in TYPES[kind] if LAYOUTS[name][0] == size]
        jobs = [partial(trained, model, tmp_path / name, LAYOUTS[name][1]) for name in names]
        found |= {name: succeeded(run)[0] for name, run in zip(names, on_processes(size, *jobs), strict=True)}
    for name, run in found.items():
        assert_same(run, alone, name, STEPS)

    there, back = {"logging.run_name": "rest"}, found["megatron, ep 2"].folder / "checkpoint-2"
    there |= LAYOUTS["megatron, tp 2"][1] | {"checkpoint.resume": str(alone.folder / "checkpoint-2")}
    resumed = on_processes(2, partial(trained, model, tmp_path / "there", there))[0]
    assert_resumed(succeeded(resumed)[0], alone)
    assert_resumed(trained(model, tmp_path / "back", {"checkpoint.resume": str(back)}), alone)

    last = found["megatron, ep 2"]
    after = logits(PeftModel.from_pretrained(plain_torch.load_model(model), last.folder / f"checkpoint-{STEPS}"))
    assert float((after - logits(plain_torch.load_model(model))).abs().max()) > 1e-2
    assert_leaves(last, model, after, tmp_path, step=STEPS, adapter=True)


def assert_resumed(run: Trained, whole: Trained) -> None:
    """Compare the last steps, and the adapters after them."""
    assert run.losses == pytest.approx(whole.losses[2:], rel=1e-4)
    assert run.grad_norms == pytest.approx(whole.grad_norms[2:], rel=1e-4)
    saved = adapter_of(whole, STEPS)
    for name, tensor in adapter_of(run, STEPS).items():
        torch.testing.assert_close(tensor, saved[name], rtol=1e-3, atol=1e-4, msg=name)

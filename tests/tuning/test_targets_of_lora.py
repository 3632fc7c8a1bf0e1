"""LoRA on embeddings, heads and experts: the numbers of one process in every layout, and loaded by PEFT."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import plain_torch
import pytest
from adapters import ROWS, adapter_of, assert_leaves, assert_same, logits
from peft import PeftModel
from processes import on_processes, succeeded
from tiny_runs import Trained, run_training, write_model

STEPS = 4
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
PLACES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "embedding and head": ({}, ["embed_tokens", "lm_head", "q_proj"], ["embed_tokens", "lm_head", "q_proj"]),
    # In memory the experts of a layer are two tensors, each with one pair of matrices.
    "experts": (
        {"architecture": "Qwen3Moe", **EXPERTS},
        ["q_proj", "gate_proj", "up_proj", "down_proj"],
        ["q_proj", "experts.base_layer.lora_A", "experts.lora_A"],
    ),
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp": {"backend.name": "fsdp"},
    "zero 3": {"backend.name": "deepspeed", "backend.config": "zero3"},
}
SETTINGS: dict[str, Any] = {
    "tuner.kind": "lora",
    "tuner.rank": 4,
    "tuner.dropout": 0.0,
    "optim.lr": 5e-3,
    "optim.eps": 1e-6,
    "train.max_steps": STEPS,
    "train.global_batch": 8,
    "checkpoint.save_last": True,
}


def trained(model: Path, out: Path, targets: list[str], plan: dict[str, Any]) -> Trained:
    return run_training(model, out, ROWS, {**SETTINGS, "tuner.targets": targets, **plan})


@pytest.mark.full
@pytest.mark.parametrize("place", PLACES)
def test_adapters_on_other_layers_match_on_every_backend(tmp_path: Path, place: str) -> None:
    """Adapters next to the usual layers have the same numbers everywhere."""
    shape, targets, places = PLACES[place]
    model = write_model(tmp_path / "tiny", tie_word_embeddings=False, **shape)
    alone = trained(model, tmp_path / "torch", targets, {})
    answers = on_processes(2, *[partial(trained, model, tmp_path / name, targets, LAYOUTS[name]) for name in LAYOUTS])
    assert all(any(each in name for name in adapter_of(alone, STEPS)) for each in places)
    assert alone.losses[-1] < alone.losses[0] - 0.05
    for name, answer in zip(LAYOUTS, answers, strict=True):
        assert_same(succeeded(answer)[0], alone, name, STEPS)
    after = logits(PeftModel.from_pretrained(plain_torch.load_model(model), alone.folder / f"checkpoint-{STEPS}"))
    assert_leaves(alone, model, after, tmp_path, step=STEPS)

"""LoRA on embeddings, heads and experts: the numbers of one process in every layout, and loaded by PEFT."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import plain_torch
import pytest
import torch
from peft import PeftModel
from processes import on_processes, succeeded
from safetensors.torch import load_file
from tiny_runs import Trained, conversations, run_training, write_model

from swift.config.sections import ExportSection
from swift.export.run import export_checkpoint

STEPS = 4
ROWS = conversations(16)
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
    "two processes": {},
    "fsdp": {"backend.name": "fsdp"},
    "zero 2": {"backend.name": "deepspeed", "backend.config": "zero2"},
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


def adapter_of(run: Trained) -> dict[str, torch.Tensor]:
    return load_file(run.folder / f"checkpoint-{STEPS}" / "adapter_model.safetensors")


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    found: torch.Tensor = model.eval()(input_ids=torch.arange(5, 25)[None]).logits
    return found


@pytest.mark.full
@pytest.mark.parametrize("place", PLACES)
def test_adapters_on_other_layers_match_on_every_backend(tmp_path: Path, place: str) -> None:
    """Adapters next to the usual layers have the same numbers everywhere."""
    shape, targets, places = PLACES[place]
    model = write_model(tmp_path / "tiny", tie_word_embeddings=False, **shape)
    alone = trained(model, tmp_path / "torch", targets, {})
    answers = on_processes(2, *[partial(trained, model, tmp_path / name, targets, LAYOUTS[name]) for name in LAYOUTS])
    expected = adapter_of(alone)
    assert all(any(each in name for name in expected) for each in places)
    assert alone.losses[-1] < alone.losses[0] - 0.05
    for name, answer in zip(LAYOUTS, answers, strict=True):
        run = succeeded(answer)[0]
        assert run.losses == pytest.approx(alone.losses, rel=1e-4), name
        assert run.grad_norms == pytest.approx(alone.grad_norms, rel=1e-4), name
        found = adapter_of(run)
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-4, msg=f"{name}: {key}")
    checkpoint = alone.folder / f"checkpoint-{STEPS}"
    after = logits(PeftModel.from_pretrained(plain_torch.load_model(model), checkpoint))
    said: list[str] = []
    export = partial(
        export_checkpoint, checkpoint, to="hf", options=ExportSection(out=tmp_path / "hf"), say=said.append
    )
    torch.testing.assert_close(logits(plain_torch.load_model(export())), after, rtol=1e-4, atol=1e-4)

"""Every step's loss and gradient norm, against training that is written down plainly in `plain_torch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plain_torch
import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.utils import set_peft_model_state_dict
from plain_torch import batches_of, conversation_tokens, likelihood_trajectory
from safetensors.torch import load_file
from tiny_runs import conversations, run_training, write_model
from transformers import AutoTokenizer

STEPS = 8
ROWS = conversations(20)
"""Five batches of four, so that the eight steps are an epoch and a half."""
FP32 = 1e-5


def expected(folder: Path, batch: int = 4, **options: Any) -> tuple[list[float], list[float]]:
    samples = conversation_tokens(folder, ROWS)
    model = plain_torch.load_model(folder)
    return likelihood_trajectory(model, batches_of(samples, batch, STEPS), steps=STEPS, **options)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        pytest.param({}, {}, id="padded"),
        pytest.param({"train.micro_batch": 2, "train.accumulation": 3}, {"batch": 6}, id="accumulated"),
        pytest.param({"train.global_batch": 7, "train.micro_batch": 3}, {"batch": 7}, id="uneven micro-batches"),
        pytest.param({"optim.max_grad_norm": 0}, {"clip": None}, id="not clipped"),
        pytest.param({"optim.max_grad_norm": 0.1}, {"clip": 0.1}, id="clipped hard"),
        pytest.param({"data.padding_free": True}, {}, id="padding-free"),
        pytest.param({"train.gradient_checkpointing": True}, {}, id="gradient checkpointing"),
        pytest.param({"model.attention": "eager"}, {}, id="eager attention"),
    ],
)
def test_full_fine_tuning_follows_plain_torch(
    tiny: Path, tmp_path: Path, changes: dict[str, Any], options: dict[str, Any]
) -> None:
    trained = run_training(tiny, tmp_path, ROWS, changes)
    losses, grad_norms = expected(tiny, **options)
    assert losses[-1] < losses[0] - 0.3
    assert trained.losses == pytest.approx(losses, rel=FP32)
    assert trained.grad_norms == pytest.approx(grad_norms, rel=FP32)


def test_plain_text_is_learned_from_its_second_token_to_its_end(tiny: Path, tmp_path: Path) -> None:
    texts = [row["messages"][1]["content"] for row in ROWS]
    trained = run_training(tiny, tmp_path, [{"text": text} for text in texts], {"objective.name": "pt"})
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    ids = [tokenizer(f"{text}<|im_end|>").input_ids for text in texts]
    batches = batches_of([(each[:1], each[1:]) for each in ids], 4, STEPS)
    losses, grad_norms = likelihood_trajectory(plain_torch.load_model(tiny), batches, steps=STEPS)
    assert trained.losses == pytest.approx(losses, rel=FP32)
    assert trained.grad_norms == pytest.approx(grad_norms, rel=FP32)


@pytest.mark.parametrize("options", [{}, {"dora": True}, {"rslora": True}], ids=["lora", "dora", "rslora"])
def test_adapters_follow_peft(tiny: Path, tmp_path: Path, options: dict[str, bool]) -> None:
    changes = {
        "tuner.kind": "lora",
        "tuner.dropout": 0.0,
        "tuner.rank": 4,
        **{f"tuner.{key}": value for key, value in options.items()},
    }
    # A run with next to no learning rate shows where the adapters start.
    start = run_training(
        tiny,
        tmp_path,
        ROWS,
        {**changes, "train.max_steps": 1, "checkpoint.save_last": True, "logging.run_name": "start"},
    )
    trained = run_training(tiny, tmp_path, ROWS, {**changes, "optim.lr": 3e-3})

    names = {f"use_{key}": value for key, value in options.items()}
    config = LoraConfig(r=4, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", **names)
    model = get_peft_model(plain_torch.load_model(tiny), config)
    initial = load_file(start.folder / "checkpoint-1" / "adapter_model.safetensors")
    assert not set_peft_model_state_dict(model, initial).unexpected_keys
    samples = conversation_tokens(tiny, ROWS)
    losses, grad_norms = likelihood_trajectory(model, batches_of(samples, 4, STEPS), steps=STEPS, lr=3e-3)
    assert losses[-1] < losses[0] - 0.3
    assert trained.losses == pytest.approx(losses, rel=FP32)
    assert trained.grad_norms == pytest.approx(grad_norms, rel=FP32)


def test_lora_plus_learns_b_faster(tiny: Path, tmp_path: Path) -> None:
    changes = {"tuner.kind": "lora", "tuner.dropout": 0.0, "checkpoint.save_last": True, "optim.lr": 1e-3}
    plus = {"tuner.lora_plus_ratio": 4.0, "optim.lr": 2.5e-4, "logging.run_name": "plus"}
    # At a quarter of the learning rate and a ratio of four, B moves as before and A a quarter as far.
    once = {"train.max_steps": 2, "optim.warmup_steps": 1, "optim.schedule": "constant", "optim.weight_decay": 0.0}
    plain = run_training(tiny, tmp_path, ROWS, {**changes, **once})
    faster = run_training(tiny, tmp_path, ROWS, {**changes, **plus, **once})
    moved, moved_plus = (
        load_file(run.folder / "checkpoint-2" / "adapter_model.safetensors") for run in (plain, faster)
    )
    b = next(name for name in moved if "lora_B" in name)
    torch.testing.assert_close(moved_plus[b], moved[b], rtol=1e-5, atol=1e-9)
    assert moved[b].abs().max() > 0


@pytest.mark.full
def test_compiled_blocks_give_the_same_numbers(tmp_path: Path) -> None:
    shallow = write_model(tmp_path / "shallow", num_hidden_layers=1)
    trained = run_training(shallow, tmp_path, ROWS, {"train.compile": True, "train.max_steps": 3})
    plain = run_training(shallow, tmp_path, ROWS, {"train.max_steps": 3, "logging.run_name": "plain"})
    assert trained.losses == pytest.approx(plain.losses, rel=FP32)
    assert trained.grad_norms == pytest.approx(plain.grad_norms, rel=FP32)

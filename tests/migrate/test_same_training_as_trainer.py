"""A run of transformers' Trainer and the run that its arguments become: the same first loss and learning rates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import typed
from tiny_runs import conversations, run_training, write_jsonl, write_model

pytestmark = pytest.mark.full

ARGUMENTS: dict[str, dict[str, Any]] = {
    "defaults, by epochs": {"learning_rate": 1e-3, "per_device_train_batch_size": 4},
    "a warm-up in parts, accumulation": {
        "learning_rate": 2e-3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 8,
        "warmup_steps": 0.25, "lr_scheduler_type": "cosine", "weight_decay": 0.1, "adam_beta2": 0.95,
        "max_grad_norm": 0.5, "gradient_checkpointing": True,
    },
}  # fmt: skip


def _batch(features: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    longest = max(len(feature["input_ids"]) for feature in features)
    padded = [feature["input_ids"] + [0] * (longest - len(feature["input_ids"])) for feature in features]
    lengths = torch.tensor([len(feature["input_ids"]) for feature in features])
    mask = torch.arange(longest)[None, :] < lengths[:, None]
    tokens = torch.tensor(padded)
    return {"input_ids": tokens, "attention_mask": mask.long(), "labels": tokens.masked_fill(~mask, -100)}


def _flat(configuration: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, keys in configuration.items():
        if isinstance(keys, dict):
            yield from ((f"{section}.{key}", value) for key, value in keys.items())
        else:
            yield section, keys


@pytest.mark.parametrize("case", ARGUMENTS)
def test_trainer_arguments_give_same_loss_and_lr(case: str, tmp_path: Path) -> None:
    """Arguments of the trainer give its first loss and its learning rates."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

    rows, tiny = conversations(12), write_model(tmp_path / "tiny")
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "theirs"), logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True,
        train_sampling_strategy="sequential", save_strategy="no", **ARGUMENTS[case],
    )  # fmt: skip
    (tmp_path / "training_args.json").write_text(arguments.to_json_string())
    imported = typed(["config", "import", "training_args.json", "--out", "run.yaml"], tmp_path)
    assert imported.code == 0, imported.output

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    texts = [tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in rows]
    data = [{"input_ids": tokenizer(text, add_special_tokens=False)["input_ids"]} for text in texts]
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    trainer = Trainer(model=model, args=arguments, train_dataset=data, data_collator=_batch)
    trainer.train()
    theirs = [line for line in trainer.state.log_history if "loss" in line]

    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    settings = dict(_flat(yaml.safe_load((tmp_path / "run.yaml").read_text())))
    # The arguments name no data; those of this test are read as a whole.
    own = {"data.train": [str(file)], "data.loss_on": "all", "train.max_steps": None, "optim.warmup_steps": None}
    run = run_training(tiny, tmp_path / "ours", None, {**own, **settings, "logging.output": str(tmp_path / "ours")})

    ours = [line for line in run.lines.values() if "learning_rate" in line]
    assert [line["learning_rate"] for line in ours] == pytest.approx(
        [line["learning_rate"] for line in theirs], rel=1e-4, abs=1e-12
    )
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], rel=1e-4)
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], rel=1e-3)
    assert (
        json.loads((tmp_path / "training_args.json").read_text())["per_device_train_batch_size"]
        == settings["train.micro_batch"]
    )

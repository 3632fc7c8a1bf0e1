"""The real Trainer of transformers on tiny models: what it holds in memory, and what it leaves on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

STEPS = 3
ARGUMENTS: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "max_steps": STEPS,
    "learning_rate": 1e-2,
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 1,
    "save_steps": STEPS,
    "logging_steps": 1,
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
}


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Twelve tokens each, from the index alone."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 200, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


@dataclass(frozen=True)
class Held:
    """What a Trainer has in memory."""

    weights: dict[str, torch.Tensor]
    state: dict[str, dict[str, torch.Tensor]]
    learning_rate: float
    groups: list[dict[str, Any]]


def model_of(folder: Path, *, lora: bool = False) -> Any:
    """As users load it."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if lora:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)
        model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]))
    return model


def trainer_of(model: Any, out: Path, **changes: Any) -> Any:
    """A Trainer with a schedule and two groups."""
    from transformers import Trainer, TrainingArguments

    return Trainer(
        model=model, args=TrainingArguments(output_dir=str(out), **{**ARGUMENTS, **changes}), train_dataset=Rows()
    )


def held_by(trainer: Any) -> Held:
    """By names in memory, every trained parameter."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    named = {name: each for name, each in trainer.model.named_parameters() if each.requires_grad}
    return Held(
        weights={name: each.detach().clone() for name, each in named.items()},
        state={name: {k: v.clone() for k, v in optimizer.state[each].items()} for name, each in named.items()},
        learning_rate=optimizer.param_groups[0]["lr"],
        groups=[{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
    )


def train(model: Path, out: Path, *, lora: bool = False, **changes: Any) -> tuple[Path, Held]:
    """The checkpoint of the last step, and what was in memory then."""
    trainer = trainer_of(model_of(model, lora=lora), out, **changes)
    trainer.train()
    return out / f"checkpoint-{trainer.state.global_step}", held_by(trainer)


def write_args_of_ms_swift(folder: Path, **values: Any) -> None:
    """The file that ms-swift puts beside its checkpoints."""
    (folder / "args.json").write_text(json.dumps(values))

"""Hugging Face's Trainer with FSDP2 or DeepSpeed on the same chats, padded.

    torchrun --nproc_per_node N -m benchmarks.trainer_loop ORDER.json    trains, prints when each step ended

accelerate supports FSDP on accelerators only, and would silently use DDP on the CPU. This script makes it use FSDP;
everything else is as in a user's script.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks.bare_loop import BareLoop
from benchmarks.commands import ROWS
from benchmarks.peer import common_arguments, read_order


class Stamps(TrainerCallback):
    """When each step ended."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.time())


def main() -> None:
    order = read_order()
    loop = BareLoop(order["model"], order["chats"], order["learning_rate"])

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        input_ids, attention_mask, labels = loop.pad([(row["input_ids"], row["labels"]) for row in rows])
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

    config = order.get("deepspeed")
    engine: dict[str, Any] = {}
    if config:
        engine["deepspeed"] = {**config, "zero_allow_untested_optimizer": True}
    else:
        _let_fsdp_be_on_the_cpu()
        block = type(loop.model.model.layers[0]).__name__
        engine |= {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": [block]}}
    arguments = TrainingArguments(
        **{**common_arguments(order), **engine}, per_device_train_batch_size=ROWS, num_train_epochs=1, weight_decay=0.0,
        adam_beta2=0.95, optim="adamw_torch_fused", logging_steps=1,
    )  # fmt: skip
    stamps = Stamps()
    trainer = Trainer(
        model=loop.model,
        args=arguments,
        data_collator=collate,
        train_dataset=[{"input_ids": ids, "labels": labels} for ids, labels in loop.samples],
        callbacks=[stamps],
    )
    trainer.train()
    wanted = DistributedType.DEEPSPEED if config else DistributedType.FSDP
    if trainer.accelerator.distributed_type is not wanted:
        raise SystemExit(f"This was not a run of {wanted}, but of {trainer.accelerator.distributed_type}.")
    if arguments.world_size != dist.get_world_size():
        raise SystemExit(f"The Trainer counts {arguments.world_size} processes instead of {dist.get_world_size()}.")
    if arguments.process_index == 0:
        content = {"steps": stamps.seconds, "losses": [each["loss"] for each in trainer.state.log_history[:-1]]}
        (Path(order["folder"]) / "trainer.json").write_text(json.dumps(content))


def _let_fsdp_be_on_the_cpu() -> None:
    plain = AcceleratorState.__init__

    def init(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **more: Any) -> None:
        plain(self, *args, fsdp_plugin=fsdp_plugin, **more)
        if fsdp_plugin is not None:
            self.fsdp_plugin = fsdp_plugin
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = init


if __name__ == "__main__":
    main()

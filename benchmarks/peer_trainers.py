"""Trainers of TRL and sentence-transformers that wait for swift before every step.

    python -m benchmarks.peer_trainers ORDER.json

Reads a line before each step, and prints its loss, tokens and CPU seconds after it. The trainers are used as documented
in their libraries, with the order of rows, the optimizer and the learning rate of `benchmarks.commands.TRAINING`.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoTokenizer, TrainerCallback

from benchmarks.peer import Turn, common_arguments, read_order

LOSS_SCALE = 20.0
"""The default of MultipleNegativesRankingLoss: similarities are divided by 0.05."""


class Turns(TrainerCallback):
    """Ends a turn after each step, and waits for the next: logging and the next batch belong to that one."""

    def __init__(self) -> None:
        self.loss = torch.zeros(())
        self.tokens = 0
        self._since = 0.0
        self._turn = Turn()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._end({"ready": True})

    def on_step_end(self, *_: Any, **__: Any) -> None:
        now = time.process_time()
        self._end({"loss": self.loss.item(), "tokens": self.tokens, "cpu": now - self._since})

    def _end(self, reported: dict[str, Any]) -> None:
        self._turn.end(reported)
        self._since = time.process_time()

    def watching(self, trainer: type) -> Any:
        """Return the trainer's class with a note of each batch's loss and tokens."""
        turns = self

        class Watched(trainer):  # type: ignore[misc]  # any of the two
            def compute_loss(self, model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
                masks = (
                    value
                    for name, value in inputs.items()
                    if name.endswith("attention_mask") and not name.startswith("prompt")  # of the same tokens once more
                )
                turns.tokens = int(sum(mask.sum() for mask in masks))
                loss = super().compute_loss(model, inputs, *args, **more)
                turns.loss = (loss[0] if isinstance(loss, tuple) else loss).detach()
                return loss

        return Watched


def arguments(order: dict[str, Any]) -> dict[str, Any]:
    return {
        **common_arguments(order), "per_device_train_batch_size": order["rows"], "num_train_epochs": 100,
        "weight_decay": 0.0, "adam_beta2": 0.95, "gradient_checkpointing": order["recompute"], "logging_steps": 1,
    }  # fmt: skip


def reward_trainer(order: dict[str, Any], turns: Turns) -> Any:
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    return turns.watching(RewardTrainer)(
        model=AutoModelForSequenceClassification.from_pretrained(order["model"], dtype=torch.float32),
        args=RewardConfig(**arguments(order), train_sampling_strategy="sequential"),
        train_dataset=load_dataset("json", data_files=order["data"], split="train", cache_dir=order["folder"]),
        processing_class=AutoTokenizer.from_pretrained(order["model"]),
        callbacks=[turns],
    )


def embedding_trainer(order: dict[str, Any], turns: Turns) -> Any:
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from torch.utils.data import SequentialSampler

    class InOrder(DefaultBatchSampler):
        def __init__(self, dataset: Any, batch_size: int, drop_last: bool, **_: Any) -> None:
            super().__init__(SequentialSampler(dataset), batch_size=batch_size, drop_last=drop_last)

    model = SentenceTransformer(order["model"], device="cpu")
    return turns.watching(SentenceTransformerTrainer)(
        model=model,
        args=SentenceTransformerTrainingArguments(**arguments(order), batch_sampler=InOrder),
        train_dataset=load_dataset("json", data_files=order["data"], split="train", cache_dir=order["folder"]),
        loss=MultipleNegativesRankingLoss(model, scale=LOSS_SCALE),
        callbacks=[turns],
    )


def gkd_trainer(order: dict[str, Any], turns: Turns) -> Any:
    from transformers import AutoModelForCausalLM
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    return turns.watching(GKDTrainer)(
        model=AutoModelForCausalLM.from_pretrained(order["model"], dtype=torch.float32),
        teacher_model=AutoModelForCausalLM.from_pretrained(order["teacher"], dtype=torch.float32),
        args=GKDConfig(
            **{**arguments(order), "train_sampling_strategy": "sequential", "temperature": 1.0},
            **{"lmbda": order["lmbda"], "beta": order["beta"], "max_new_tokens": order["longest"]},
        ),
        train_dataset=load_dataset("json", data_files=order["data"], split="train", cache_dir=order["folder"]),
        processing_class=AutoTokenizer.from_pretrained(order["model"]),
        callbacks=[turns],
    )


TRAINERS = {"rm": reward_trainer, "embedding": embedding_trainer, "gkd": gkd_trainer}
"""By swift's name of the objective."""


def main() -> None:
    order = read_order()
    TRAINERS[order["objective"]](order, Turns()).train()


if __name__ == "__main__":
    main()

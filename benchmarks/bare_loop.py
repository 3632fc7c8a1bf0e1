"""The loop that swift is compared with, written with torch and transformers only.

    python -m benchmarks.bare_loop ORDER.json        trains on these batches, prints its peak memory

Padded batches, fused AdamW, cross entropy on the model's logits, gradients clipped to norm 1.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.facts import cpu_seconds, peak_memory_mib, read_lines
from benchmarks.peer import read_order

NO_TARGET = -100

Sample = tuple[list[int], list[int]]


class BareLoop:
    """A model, its optimizer, and chats as token ids."""

    def __init__(self, model: str | Path, chats: str | Path, learning_rate: float) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self.samples = [self._encode(line["messages"]) for line in read_lines(Path(chats))]
        self.model: Any = self.load(model)
        self.model.train()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    def load(self, model: str | Path) -> Any:
        return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def step(self, batch: Sequence[int]) -> tuple[float, int]:
        """Train on the samples of these numbers; returns the loss, and how many tokens there were without padding."""
        loss_sum, counts = self.losses(batch)
        loss = loss_sum / counts[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item(), int(counts[1])

    def losses(self, batch: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of the losses of learned tokens; their number and that of all tokens."""
        input_ids, attention_mask, labels = self.pad([self.samples[index] for index in batch])
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        targets = labels[:, 1:].flatten()
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets, ignore_index=NO_TARGET, reduction="sum")
        return loss, torch.stack([(targets != NO_TARGET).sum(), attention_mask.sum()])

    def _encode(self, messages: list[dict[str, str]]) -> Sample:
        """Return tokens and targets: the response and the token that ends it, not the line break after that."""
        prompt = self._ids(messages[:-1], add_generation_prompt=True)
        ids = self._ids(messages)
        return ids, [NO_TARGET] * len(prompt) + ids[len(prompt) : -1] + [NO_TARGET]

    def _ids(self, messages: list[dict[str, str]], **options: bool) -> list[int]:
        return list(self.tokenizer.apply_chat_template(messages, return_dict=True, **options)["input_ids"])

    def pad(self, samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        shape = len(samples), max(len(ids) for ids, _ in samples)
        input_ids = torch.full(shape, self.tokenizer.pad_token_id)
        labels = torch.full(shape, NO_TARGET)
        attention_mask = torch.zeros(shape, dtype=torch.int64)
        for row, (ids, targets) in enumerate(samples):
            input_ids[row, : len(ids)] = torch.tensor(ids)
            labels[row, : len(ids)] = torch.tensor(targets)
            attention_mask[row, : len(ids)] = 1
        return input_ids, attention_mask, labels


def main() -> None:
    order = read_order()
    loop = BareLoop(order["model"], order["chats"], order["learning_rate"])
    first, *others = order["batches"]
    loop.step(first)
    first_step = {"first_step_at": time.time(), "first_step_cpu": cpu_seconds()}
    for batch in others:
        loop.step(batch)
    print(json.dumps({"peak_mib": peak_memory_mib(), **first_step}))


if __name__ == "__main__":
    main()

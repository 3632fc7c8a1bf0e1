"""Training written down plainly, without swift: one sample at a time, no padding, sums divided by the global weight.

What the tests of trajectories compare with. It shares nothing with swift but the tokenizer's vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup

from swift_testing import reference
from swift_testing.reference import Tokens, response_logp

__all__ = [
    "PlainTrainer",
    "Tokens",
    "batches_of",
    "conversation_tokens",
    "likelihood_trajectory",
    "load_model",
    "response_logp",
    "tokens_of",
]


def load_model(folder: Path) -> torch.nn.Module:
    """The model as transformers reads it, in fp32."""
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model


def tokens_of(folder: Path, question: str, answer: str) -> Tokens:
    """The conversation as ids, laid out by hand: the answer and the token that ends it are learned."""
    return reference.tokens_of(AutoTokenizer.from_pretrained(folder), question, answer)


def conversation_tokens(folder: Path, rows: Iterable[dict[str, Any]]) -> list[Tokens]:
    """`tokens_of` for rows with one question and one answer."""
    return [tokens_of(folder, *(message["content"] for message in row["messages"])) for row in rows]


def batches_of(items: Sequence[Any], size: int, steps: int) -> Iterator[Sequence[Any]]:
    """So many global batches, in order, over and over; the last one of an epoch may be short."""
    made = 0
    while True:
        for start in range(0, len(items), size):
            if made == steps:
                return
            yield items[start : start + size]
            made += 1


class PlainTrainer:
    """AdamW with decay on matrices, clipping, and transformers' cosine schedule."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        steps: int,
        warmup: int = 2,
        lr: float = 1e-3,
        eps: float = 1e-8,
        clip: float | None = 1.0,
    ) -> None:
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._clip = clip
        matrices = [parameter for parameter in self._trained if parameter.ndim >= 2]
        vectors = [parameter for parameter in self._trained if parameter.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=eps)
        self._schedule = get_cosine_schedule_with_warmup(self._optimizer, warmup, steps)

    def step(self, loss: torch.Tensor) -> tuple[float, float]:
        """Loss and gradient norm before clipping."""
        self.begin()
        return self.add(loss), self.update()

    def begin(self) -> None:
        """Forget all gradients."""
        self._optimizer.zero_grad()

    def add(self, loss: torch.Tensor) -> float:
        """Add the gradient of a part of the loss; return the part."""
        loss.backward()
        return loss.item()

    def update(self) -> float:
        """Clip and update; return the gradient norm before clipping."""
        norm = torch.linalg.vector_norm(
            torch.stack([parameter.grad.norm() for parameter in self._trained if parameter.grad is not None])
        )
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._trained, self._clip)
        self._optimizer.step()
        self._schedule.step()
        return norm.item()


def likelihood_trajectory(
    model: torch.nn.Module, batches: Iterable[Sequence[Tokens]], *, steps: int, **options: Any
) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of fine-tuning: the mean over the answer tokens of each global batch."""
    trainer = PlainTrainer(model, steps=steps, **options)
    results = []
    for batch in batches:
        weight = sum(len(answer) for _, answer in batch)
        # One after the other: some models change what an earlier pass has kept.
        trainer.begin()
        losses = [trainer.add(-response_logp(model, tokens) / weight) for tokens in batch]
        results.append((sum(losses), trainer.update()))
    return [loss for loss, _ in results], [norm for _, norm in results]

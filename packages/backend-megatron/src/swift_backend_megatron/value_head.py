"""A head for values next to the unembedding, on the last stage, whole on every tensor parallel process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from swift.toolkit import VALUE_HEAD_MODULE


def add_value_head(chunks: Sequence[Any], config: Any) -> None:
    """Put the head, whose weight is read later, on the chunk that the model ends with, where this process has it."""
    for chunk in chunks:
        if chunk.post_process:
            like = next(chunk.parameters())
            head = torch.nn.Linear(config.hidden_size, 1, bias=False, dtype=config.params_dtype, device=like.device)
            # Its gradient is complete on every tensor parallel process, and must not be summed over them.
            head.weight.sequence_parallel = False  # type: ignore[attr-defined]  # Megatron's mark
            chunk.add_module(VALUE_HEAD_MODULE, head)


def value_head_of(chunk: Any) -> Any:
    """Return the head of a chunk; None where it has none."""
    return getattr(chunk, VALUE_HEAD_MODULE, None)

"""transformers' `padding_idx` in Megatron, whose embedding has none: inputs give that row no gradient.

The gradient is masked where the embedding's output leaves it, by token: the same on every shard of the vocabulary. The
unembedding's share of a tied weight, on whichever stage, stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from swift_backend_megatron.images import language_of


def mask_padding_row(chunks: Sequence[Any], row: int | None) -> None:
    """Mask the gradient that inputs give this row, in the chunk that embeds, where this process has it."""
    for chunk in chunks:
        if row is not None and language_of(chunk).pre_process:
            language_of(chunk).embedding.word_embeddings.register_forward_hook(_mask_of(row))


def _mask_of(row: int) -> Any:
    def mask(embedding: Any, arguments: tuple[torch.Tensor], output: torch.Tensor) -> None:
        if not output.requires_grad:
            return
        held = arguments[0] == row
        if embedding.reduce_scatter_embeddings:  # the output is this process's part of [tokens, rows, size]
            held = held.t().chunk(embedding.tp_group.size())[embedding.tp_group.rank()]
        masked = partial(torch.Tensor.masked_fill, mask=held[..., None], value=0.0)
        output.register_hook(masked)  # type: ignore[no-untyped-call]  # torch declares no types

    return mask

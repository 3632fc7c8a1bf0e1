"""`padding_idx`: the row of an embedding that gets no gradient from inputs, as transformers makes most models.

With tied weights the row still learns as a row of the unembedding. Not every architecture has one, so that it is read
off the modules and not off `pad_token_id` in the configuration.
"""

from __future__ import annotations

from typing import Any

import torch


def padding_row_of(model: Any) -> int | None:
    """Return the row of the word embedding of a transformers model; None where each row gets its gradient."""
    row: int | None = getattr(model.get_input_embeddings(), "padding_idx", None)
    return row


def train_padding_row(model: torch.nn.Module) -> None:
    """Give the padding token's row its gradient, also in further embeddings of the same tokens (Gemma 3n has such)."""
    row = padding_row_of(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.padding_idx == row:
            module.padding_idx = None

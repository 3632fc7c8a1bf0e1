"""Policies small enough to write down every completion: the exact expectations that estimators are compared with."""

from __future__ import annotations

from itertools import product

import torch

VOCABULARY, LENGTH = 4, 3
ANSWERS = torch.tensor(list(product(range(VOCABULARY), repeat=LENGTH)))
"""All 64 completions of three tokens, [64, 3]."""


def parameters(seed: int) -> torch.Tensor:
    """Logits of the next token after each prefix: one row per token before it (4: none), per position."""
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(LENGTH, VOCABULARY + 1, VOCABULARY, generator=noise, dtype=torch.float64)


def token_logps(logits: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """The log-probability of each token of each completion, [64, 3]."""
    before = torch.cat([torch.full((len(ANSWERS), 1), VOCABULARY), ANSWERS[:, :-1]], dim=1)
    every = (logits / temperature).log_softmax(-1)
    return every[torch.arange(LENGTH), before, ANSWERS]


def token_entropies(logits: torch.Tensor) -> torch.Tensor:
    """The entropy of the distribution of each token of each completion, [64, 3]."""
    before = torch.cat([torch.full((len(ANSWERS), 1), VOCABULARY), ANSWERS[:, :-1]], dim=1)
    every = logits.log_softmax(-1)
    return -(every.exp() * every).sum(-1)[torch.arange(LENGTH), before]

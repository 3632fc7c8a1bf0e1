"""Transforms of a head's output into logits, and heads of which each process has a shard of the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class LogitTransform:
    """Turn a head's output into logits: `softcap * tanh(scale * x / softcap) / temperature`."""

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits in fp32."""
        logits = logits.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = (logits / self.softcap).tanh() * self.softcap
        if self.temperature != 1.0:
            logits = logits / self.temperature
        return logits

    def at(self, temperature: float) -> LogitTransform:
        """Return the same transform with logits divided by `temperature` in the end."""
        return replace(self, temperature=temperature)

    def slope(self, transformed: torch.Tensor) -> torch.Tensor | float | None:
        """Return the derivative where the output is `transformed`; None means 1."""
        factor = self.scale / self.temperature
        if self.softcap is not None:
            capped = transformed if self.temperature == 1.0 else transformed * self.temperature
            return (1 - (capped / self.softcap).square()) * factor
        return None if factor == 1.0 else factor


@dataclass(frozen=True)
class VocabularyShard:
    """The tokens that this process's rows of the head stand for, where processes of `group` have the others.

    Everything that a view needs of the whole vocabulary is two small all-reduces per chunk. The gradient of the hidden
    states is that of this process's tokens alone: adding it up over the group is the caller's business.
    """

    start: int
    size: int
    """Rows that stand for tokens; those behind them are padding, and as if they were not there."""
    vocabulary: int
    """Tokens in all."""
    group: dist.ProcessGroup

    def hide_padding(self, logits: torch.Tensor) -> None:
        """Give rows that stand for nothing no probability."""
        if self.size < logits.shape[-1]:
            logits[:, self.size :] = -torch.inf

    def forget_padding(self, gradient: torch.Tensor) -> None:
        """Give rows that stand for nothing no gradient."""
        if self.size < gradient.shape[-1]:
            gradient[:, self.size :] = 0.0

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """Return the largest values over the whole vocabulary, given those of this process's tokens."""
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.group)
        return values

    def add_up(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return sums over the whole vocabulary, given those over this process's tokens."""
        table = torch.stack(values)
        dist.all_reduce(table, group=self.group)
        return table.unbind()

    def local(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of these tokens here (any row, where another process has them), and which are here."""
        rows = tokens - self.start
        here = (rows >= 0) & (rows < self.size)
        return rows.where(here, torch.zeros_like(rows)), here

"""Collectives that autograd differentiates, for processes that share the tokens or the features of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


def gathered(part: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Join the parts of all processes. All compute the same from the whole, so that each keeps its part's gradient."""
    return _applied(_Gather, part, dim, group)


def part_of(whole: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Return this process's part of values that are the same on all; the parts' gradients are joined."""
    return _applied(_Part, whole, dim, group)


def copied(whole: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return values that are the same on all and serve other outputs on each: gradients are added up."""
    return _applied(_Copy, whole, group)


def added_up(part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Add the parts of all processes up. All compute the same from the sum, whose gradient is that of each part."""
    return _applied(_Sum, part, group)


def exchanged(
    rows: Sequence[torch.Tensor], send: Sequence[int], receive: Sequence[int], group: dist.ProcessGroup
) -> tuple[torch.Tensor, ...]:
    """Send the first `send[0]` rows of each tensor to process 0, and so on; gradients go back the same way.

    `receive` is how many come from each process. The tensors travel together, so that their gradients do so too.
    """
    outputs: tuple[torch.Tensor, ...] = _Exchange.apply(group, tuple(send), tuple(receive), *rows)  # type: ignore[no-untyped-call]  # as torch declares it
    return outputs


def _applied(function: Any, *arguments: Any) -> torch.Tensor:
    outputs: torch.Tensor = function.apply(*arguments)
    return outputs


def _joined(part: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part.contiguous(), group=group)
    return torch.cat(parts, dim)


def _own(whole: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
    return whole.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].contiguous()


def _summed(part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    summed = part.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(summed, group=group)
    return summed


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        return _joined(part, dim, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _own(gradients[0], ctx.dim, ctx.group), None, None


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        return _own(whole, dim, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _joined(gradients[0], ctx.dim, ctx.group), None, None


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _summed(gradients[0], ctx.group), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        return _summed(part, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, group: dist.ProcessGroup, send: tuple[int, ...], receive: tuple[int, ...], *rows: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.group, ctx.send, ctx.receive = group, send, receive
        return tuple(_sent(each, send, receive, group) for each in rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, None, *(_sent(each, ctx.receive, ctx.send, ctx.group) for each in gradients)


def _sent(
    rows: torch.Tensor, send: tuple[int, ...], receive: tuple[int, ...], group: dist.ProcessGroup
) -> torch.Tensor:
    received = rows.new_empty((sum(receive), *rows.shape[1:]))
    dist.all_to_all_single(received, rows.contiguous(), [*receive], [*send], group=group)
    return received

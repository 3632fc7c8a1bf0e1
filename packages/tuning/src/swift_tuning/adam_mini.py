"""Adam-mini (arXiv:2406.16793): one second moment for each head of attention, and for each row of other weights.

Which elements share one is decided by the whole weight. Each process adds up the squares of what it has, and one sum
over the processes that hold the parts gives all of them what one process alone would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from swift.config.own_options import AdamOptions
from swift.contracts import Matrix, Placement


@dataclass(frozen=True)
class _Blocks:
    """The blocks of one weight, as far as this process must know them."""

    of_rows: torch.Tensor
    """The block of each row that this process has; of a vector, the one block that it is."""
    sizes: torch.Tensor
    """Elements of each block of the whole weight."""
    matrices: tuple[tuple[Matrix, int, int], ...]
    """Each tensor on disk, with its first block and how many it has."""
    counts: bool
    """Whether no process before this one in the group has the same part."""


class FewSecondMoments(torch.optim.Optimizer):
    """AdamW with a second moment for each block; biases have one for each element."""

    def __init__(self, groups: list[dict[str, Any]], options: AdamOptions) -> None:
        super().__init__(groups, {})
        self._options = options
        self._placements: dict[torch.Tensor, Placement] = {
            parameter: placement
            for group in self.param_groups
            for parameter, placement in zip(group["params"], group["placements"], strict=True)
        }
        first = _first_holders(list(self._placements.values()))
        self._blocks = {
            parameter: _blocks_of(placement, parameter.device, placement.name in first)
            for parameter, placement in self._placements.items()
            if not placement.name.endswith("bias")
        }
        self._means: dict[torch.Tensor, torch.Tensor] = {}
        """Of each weight, the second moments of its blocks."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # as torch's own
        """Update all parameters. Those without a gradient take part, with one of 0: others may hold the rest."""
        means = self._means_of_squares()
        for group in self.param_groups:
            for weight in group["params"]:
                grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                self._update(weight, grad, means.get(weight), group)

    def _update(
        self, weight: torch.Tensor, grad: torch.Tensor, mean: torch.Tensor | None, group: Mapping[str, Any]
    ) -> None:
        options, state = self._options, self.state[weight]
        state["step"] = float(state.get("step", 0.0)) + 1.0
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(weight)
        first = state["exp_avg"].lerp_(grad, 1 - options.beta1)
        if mean is None:
            if "exp_avg_sq" not in state:
                state["exp_avg_sq"] = torch.zeros_like(weight)
            second = state["exp_avg_sq"].mul_(options.beta2).addcmul_(grad, grad, value=1 - options.beta2)
        else:
            kept = self._means.setdefault(weight, torch.zeros_like(mean))
            kept.mul_(options.beta2).add_(mean, alpha=1 - options.beta2)
            rows = kept[self._blocks[weight].of_rows]
            second = rows.view(*weight.shape[:-1], 1) if weight.ndim > 1 else rows
        divisor = (second.sqrt() / math.sqrt(1 - options.beta2 ** state["step"])).add_(options.eps)
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        if weight.numel():
            weight.addcdiv_(first, divisor, value=-group["lr"] / (1 - options.beta1 ** state["step"]))

    def _means_of_squares(self) -> dict[torch.Tensor, torch.Tensor]:
        """Return the mean square of the gradient in each block, the same on all processes that hold a part."""
        by_group: dict[int, tuple[Any, list[torch.Tensor]]] = {}
        for weight in self._blocks:
            processes = self._placements[weight].processes
            by_group.setdefault(id(processes), (processes, []))[1].append(weight)
        means = {}
        for processes, weights in by_group.values():
            sums = [self._sums_of_squares(each) for each in weights]
            together = torch.cat(sums)
            if processes is not None:
                dist.all_reduce(together, group=processes)
            for weight, total in zip(weights, torch.split(together, [len(each) for each in sums]), strict=True):
                means[weight] = total / self._blocks[weight].sizes
        return means

    def _sums_of_squares(self, weight: torch.Tensor) -> torch.Tensor:
        blocks = self._blocks[weight]
        total = torch.zeros_like(blocks.sizes)
        if weight.grad is None or not weight.numel() or not blocks.counts:
            return total
        squares = weight.grad.square()
        rows = squares.sum(dim=-1).reshape(-1) if weight.ndim > 1 else squares.sum().reshape(1)
        return total.index_add_(0, blocks.of_rows, rows.to(total.dtype))

    def matrix_slots(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """Return the second moments of each tensor on disk."""
        return self._cut(self._means)

    def empty_matrix_slots(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """Return memory for all of them."""
        return self._cut({weight: torch.zeros_like(blocks.sizes) for weight, blocks in self._blocks.items()})

    def take_matrix_slots(self, slots: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        for weight, blocks in self._blocks.items():
            read = [slots[matrix.name]["block_avg_sq"] for matrix, _, _ in blocks.matrices if matrix.name in slots]
            if read:
                self._means[weight] = torch.cat(read)

    def _cut(self, means: Mapping[torch.Tensor, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
        return {
            matrix.name: {"block_avg_sq": mean.narrow(0, start, count)}
            for weight, mean in means.items()
            for matrix, start, count in self._blocks[weight].matrices
        }


def _blocks_of(placement: Placement, device: torch.device, counts: bool) -> _Blocks:
    shape = placement.shape
    if len(shape) < 2:
        return _Blocks(
            of_rows=torch.zeros(1, dtype=torch.long, device=device),
            sizes=torch.full((1,), float(math.prod(shape)), device=device),
            matrices=((placement.matrices[0], 0, 1),),
            counts=counts,
        )
    rows = math.prod(shape[:-1])
    together = rows // placement.heads if placement.heads else 1
    numbers = torch.arange(rows, device=device).view(shape[:-1])[placement.region[:-1]].reshape(-1)
    placements = [
        (matrix, matrix.start // shape[-1] // together, math.prod(matrix.shape[:-1]) // together)
        for matrix in placement.matrices
    ]
    sizes = torch.full((rows // together,), float(together * shape[-1]), device=device)
    return _Blocks(numbers // together, sizes, tuple(placements), counts)


def _first_holders(placements: list[Placement]) -> set[str]:
    """Return the names of the weights whose part no process before this one has: what is counted once."""
    groups: dict[int, tuple[Any, list[Placement]]] = {}
    for placement in placements:
        groups.setdefault(id(placement.processes), (placement.processes, []))[1].append(placement)
    found = set()
    for processes, members in groups.values():
        bounds = [tuple((each.start, each.stop) for each in placement.region) for placement in members]
        everyone = [bounds]
        rank = 0
        if processes is not None:
            everyone = [[] for _ in range(dist.get_world_size(processes))]
            dist.all_gather_object(everyone, bounds, group=processes)
            rank = dist.get_rank(processes)
        for index, placement in enumerate(members):
            if all(everyone[before][index] != bounds[index] for before in range(rank)):
                found.add(placement.name)
    return found

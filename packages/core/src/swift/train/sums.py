"""Sums of what objectives return for micro-batches, made into results of the global batch. For use by backends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from swift.contracts import ForwardResult, LossSums, ModelView, StepResult
from swift.errors import TrainingError
from swift.models.router_losses import LOSSES, load_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from swift.data.batch import Batch, MicroBatch


class NonFiniteStep(TrainingError):
    """Report that loss or gradient norm of a step is not a number; raised on every process, before the update."""

    def __init__(self, loss: float, grad_norm: float, sample_ids: Sequence[int]) -> None:
        super().__init__(f"loss {loss}, gradient norm {grad_norm}")
        self.loss = loss
        self.grad_norm = grad_norm
        self.sample_ids = list(sample_ids)
        """Samples of this process's micro-batches whose own loss is not finite."""


class GlobalSums:
    """Collect `LossSums` of one process's micro-batches, and make them global with one all-reduce."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self._losses: list[tuple[torch.Tensor, list[int]]] = []
        self._metrics: dict[str, list[torch.Tensor]] = {}
        self._segments: list[torch.Tensor] = []
        self._tokens: list[tuple[dict[str, torch.Tensor], torch.Tensor]] = []
        self._loads: list[torch.Tensor] = []
        self.expert_load: torch.Tensor | None = None
        """[layers, experts]: how many tokens of the global batch each expert got, once sums are reduced."""

    def add(self, sums: LossSums, batch: MicroBatch) -> None:
        """Add one micro-batch. No synchronisation with the device happens here."""
        loss = sums.loss if sums.reported is None else sums.reported
        self._losses.append((loss.detach().to(torch.float64), batch.sample_ids))
        for name, (value, weight) in sums.metrics.items():
            pair = torch.stack([self._scalar(value), self._scalar(weight)])
            self._metrics.setdefault(name, []).append(pair)
        if sums.segments is not None:
            self._segments.append(sums.segments.detach().float())
        if sums.tokens:
            detached = {name: value.detach().float() for name, value in sums.tokens.items()}
            self._tokens.append((detached, batch.segment_ids))

    def add_routing(self, view: ModelView, batch: MicroBatch, *, counts: bool) -> None:
        """Add what routers did in a pass of training; `counts` is False for a process without rows of its own."""
        for name in LOSSES:
            loss = getattr(view, name)
            if loss is not None:
                pair = torch.stack([self._scalar(loss), self._scalar((batch.segment_ids >= 0).sum())])
                self._metrics.setdefault(name, []).append(pair * counts)
        if view.expert_load is not None:
            self._loads.append(view.expert_load.detach().to(self._device, torch.float64) * counts)

    def _scalar(self, value: torch.Tensor | float) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            return torch.full((), value, device=self._device, dtype=torch.float64)
        return value.detach().to(self._device, torch.float64)

    def reduce(
        self, all_reduce: Callable[[torch.Tensor], object] | None
    ) -> tuple[float, dict[str, tuple[float, float]]]:
        """Return the global loss sum and the global (sum, weight) of every metric.

        `all_reduce` adds a tensor up in place over the processes that hold different slices; None for one process.
        """
        names = sorted(self._metrics)
        loss = torch.stack([value for value, _ in self._losses]).sum()
        table = torch.stack(
            [torch.stack([loss, torch.zeros_like(loss)]), *(torch.stack(self._metrics[name]).sum(0) for name in names)]
        )
        load = torch.stack(self._loads).sum(0) if self._loads else table.new_zeros(0)
        together = torch.cat([table.flatten(), load.flatten()])
        if all_reduce is not None:
            all_reduce(together)
        if self._loads:
            self.expert_load = together[table.numel() :].view_as(load)
        rows = together[: table.numel()].view_as(table).tolist()
        return rows[0][0], {name: (row[0], row[1]) for name, row in zip(names, rows[1:], strict=True)}

    @property
    def segments(self) -> torch.Tensor | None:
        """Return one value or vector per segment of this process's slice, in order, where the objective gives them."""
        return torch.cat(self._segments) if self._segments else None

    @property
    def tokens(self) -> list[Mapping[str, np.ndarray]] | None:
        """Values of each segment's tokens in this process's slice, in order, if the objective returns any.

        See `ForwardResult.tokens`.
        """
        if not self._tokens:
            return None
        return [segment for values, ids in self._tokens for segment in _by_segment(values, ids)]

    def nonfinite_samples(self) -> list[int]:
        """Return the samples whose own loss is not finite."""
        return [sample for loss, samples in self._losses if not math.isfinite(float(loss)) for sample in samples]

    def step_result(
        self,
        batch: Batch,
        reduced: tuple[float, dict[str, tuple[float, float]]],
        *,
        grad_norm: float,
        learning_rate: float,
        skipped: bool = False,
    ) -> StepResult:
        """Return the quotients of the global sums."""
        loss, metrics = reduced
        return StepResult(
            loss=loss / batch.weight,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            metrics={
                **{name: value / weight if weight else 0.0 for name, (value, weight) in metrics.items()},
                **({} if self.expert_load is None else load_metrics(self.expert_load)),
            },
            skipped=skipped,
        )

    def forward_result(self, batch: Batch, reduced: tuple[float, dict[str, tuple[float, float]]]) -> ForwardResult:
        """Return the sums as they are, with the segments and tokens of this process's slice (none of a dummy)."""
        loss, metrics = reduced
        tokens = self.tokens
        return ForwardResult(
            loss=loss / (batch.weight or 1.0),
            weight=batch.weight,
            metrics=metrics,
            segments=self.segments if batch.rows else None,
            tokens=tokens if batch.rows or tokens is None else [],
        )


def _by_segment(values: Mapping[str, torch.Tensor], segment_ids: torch.Tensor) -> Iterator[dict[str, np.ndarray]]:
    """Yield the values of each segment, moved from the positions to the tokens that they predict."""
    ids = segment_ids.cpu().numpy()
    inside = ids >= 0
    edges = np.cumsum(np.bincount(ids[inside]))
    # Segments lie in order in both layouts, and each in one piece.
    columns = {name: np.split(value.cpu().numpy()[inside], edges[:-1]) for name, value in values.items()}
    for index in range(len(edges)):
        yield {name: _predicted(parts[index]) for name, parts in columns.items()}


def _predicted(positions: np.ndarray) -> np.ndarray:
    """Move values one token on, from the position that predicts to the one that is predicted."""
    moved: np.ndarray = np.concatenate([np.zeros_like(positions[:1]), positions[:-1]], dtype=np.float32)
    return moved

"""Adding up what objectives say of micro-batches into what is known of the global batch. For use by backends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from swift.contracts import ForwardResult, LossSums, StepResult
from swift.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from swift.data.batch import Batch, MicroBatch


class NonFiniteStep(TrainingError):
    """Loss or gradient norm of a step is not a number; raised on every process, before the update."""

    def __init__(self, loss: float, grad_norm: float, sample_ids: Sequence[int]) -> None:
        super().__init__(f"loss {loss}, gradient norm {grad_norm}")
        self.loss = loss
        self.grad_norm = grad_norm
        self.sample_ids = list(sample_ids)
        """Samples of this process's micro-batches whose own loss is not finite."""


class GlobalSums:
    """Collects `LossSums` of one process's micro-batches, and makes them global with one all-reduce."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self._losses: list[tuple[torch.Tensor, list[int]]] = []
        self._metrics: dict[str, list[torch.Tensor]] = {}
        self._segments: list[torch.Tensor] = []

    def add(self, sums: LossSums, batch: MicroBatch) -> None:
        """Take in one micro-batch. No synchronisation with the device happens here."""
        self._losses.append((sums.loss.detach().to(torch.float64), batch.sample_ids))
        for name, (value, weight) in sums.metrics.items():
            pair = torch.stack([self._scalar(value), self._scalar(weight)])
            self._metrics.setdefault(name, []).append(pair)
        if sums.segments is not None:
            self._segments.append(sums.segments.detach().float())

    def _scalar(self, value: torch.Tensor | float) -> torch.Tensor:
        return torch.as_tensor(value, device=self._device, dtype=torch.float64).detach()

    def reduce(
        self, all_reduce: Callable[[torch.Tensor], object] | None
    ) -> tuple[float, dict[str, tuple[float, float]]]:
        """Global loss sum and global (sum, weight) of every metric.

        `all_reduce` adds a tensor up in place over the processes that hold different slices; None for one process.
        """
        names = sorted(self._metrics)
        loss = torch.stack([value for value, _ in self._losses]).sum()
        table = torch.stack(
            [torch.stack([loss, torch.zeros_like(loss)]), *(torch.stack(self._metrics[name]).sum(0) for name in names)]
        )
        if all_reduce is not None:
            all_reduce(table)
        rows = table.tolist()
        return rows[0][0], {name: (row[0], row[1]) for name, row in zip(names, rows[1:], strict=True)}

    @property
    def segments(self) -> torch.Tensor | None:
        """One value per segment of this process's slice, in order, where the objective scores segments."""
        return torch.cat(self._segments) if self._segments else None

    def nonfinite_samples(self) -> list[int]:
        """Samples whose own loss is not finite."""
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
        """Quotients of the global sums."""
        loss, metrics = reduced
        return StepResult(
            loss=loss / batch.weight,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            metrics={name: value / weight if weight else 0.0 for name, (value, weight) in metrics.items()},
            skipped=skipped,
        )

    def forward_result(self, batch: Batch, reduced: tuple[float, dict[str, tuple[float, float]]]) -> ForwardResult:
        """Sums as they are, with the segments of this process's slice (none when it only stood in)."""
        loss, metrics = reduced
        segments = self.segments if batch.rows else None
        return ForwardResult(loss=loss / (batch.weight or 1.0), weight=batch.weight, metrics=metrics, segments=segments)

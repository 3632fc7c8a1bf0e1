"""One plan whose time can be asked for again and again, under other speeds: what fits, replays and comparisons need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from swift_plan.memory import Activations, KeptState, Stage, StagesOf, split
from swift_plan.traffic import model_traffic, step_traffic
from swift_plan.workload import Workload

if TYPE_CHECKING:
    from swift.contracts import ProcessLayout, Traffic
    from swift.planning import PlannedBackend
    from swift_plan.shape import ModelShape
    from swift_plan.timing import StepTime, Timing


@dataclass(frozen=True)
class CountedPlan:
    """A model under one layout of one backend: all that was counted, and nothing that depends on a machine's speed."""

    shape: ModelShape
    workload: Workload
    stages: Sequence[Stage]
    """Those of the pipeline that may have the most, the first one first."""
    traffic: Sequence[Traffic]
    """Of weights and gradients."""
    memory: Mapping[str, float]
    """Bytes of the process with the most, by term."""
    micro_batch: int
    kept: float
    """What a layer keeps for its backward pass, in bytes a token."""
    recompute: bool

    @classmethod
    def of(
        cls, backend: PlannedBackend, shape: ModelShape, workload: Workload, parallel: Mapping[str, Any],
        micro_batch: int, *, recompute: bool,
    ) -> CountedPlan:  # fmt: skip
        """Count one plan; `parallel` has all sizes of the layout, and so the number of processes."""
        world = _processes(parallel)
        layout = backend.layout(backend.run(parallel, world))
        accumulation = max(1, ceil(workload.rows / (layout.data * micro_batch)))
        run = backend.run(
            parallel, world, micro_batch=micro_batch, accumulation=accumulation, gradient_checkpointing=recompute
        )
        held = StagesOf(backend, shape, workload).under(layout, split(shape.layers, layout.pp, layout.vpp))
        activations = Activations(backend, run, shape, workload)
        tokens = micro_batch * workload.row_tokens / layout.sequence
        peaks = []
        for stage in held:
            state = KeptState.of(backend.memory(run, stage.weights) or {})
            peaks.append(activations.highest(stage, tokens, accumulation, state, recompute=recompute).terms(state))
        traffic = tuple(backend.traffic(run, held[0].weights, accumulation))
        most = max(peaks, key=lambda terms: sum(terms.values()))
        return cls(shape, workload, tuple(held), traffic, most, micro_batch, activations.layer, recompute)

    @property
    def layout(self) -> ProcessLayout:
        """Return the sizes of all parallel dimensions."""
        return self.stages[0].weights.layout

    @property
    def micro_batches(self) -> int:
        """Return how many micro-batches each process has in a step."""
        return max(1, ceil(self.workload.rows / (self.layout.data * self.micro_batch)))

    def messages(self) -> list[Traffic]:
        """Return all that a process of the first stage exchanges in a step."""
        tokens = self.micro_batch * self.workload.row_tokens / self.layout.sequence
        stage, times = self.stages[0], self.micro_batches
        of_layers = model_traffic(
            self.shape, self.layout, self.workload, tokens, stage.layers, recompute=self.recompute
        )
        return [
            *self.traffic,
            *step_traffic(self.shape, self.layout),
            *(replace(each, bytes=times * each.bytes, calls=times * each.calls) for each in of_layers),
        ]

    def time(self, timing: Timing) -> StepTime:
        """Return the time of a step at these speeds."""
        slowest = max(self.stages, key=lambda stage: (stage.layers, stage.has_head))
        return timing.step(
            self.shape, self.workload, slowest, self.traffic, self.micro_batch, self.kept,
            recompute=self.recompute,
        )  # fmt: skip


def _processes(parallel: Mapping[str, Any]) -> int:
    count = 1
    for name in ("dp_replicate", "dp_shard", "pp", "cp", "ulysses", "tp"):
        count *= int(parallel.get(name) or 1)
    return count

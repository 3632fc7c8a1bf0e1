"""How long an optimizer step takes, by term: arithmetic, what is exchanged, the pipeline's bubble, the update."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from swift_plan.traffic import model_traffic

if TYPE_CHECKING:
    from swift.contracts import ProcessLayout, Traffic
    from swift_plan.cluster import Cluster
    from swift_plan.memory import Stage
    from swift_plan.shape import ModelShape
    from swift_plan.workload import Workload


@dataclass(frozen=True)
class Calibration:
    """How far a machine stays behind its data sheet. The defaults are assumed; measured rows replace them."""

    matmul: float = 0.68
    """The share of the peak that large matrix products reach."""
    half: float = 1.2e9
    """Operations of a product at which it reaches half of that."""
    memory: float = 0.75
    """The share of the memory's bandwidth that is reached."""
    link: float = 0.75
    """The share of a link's bandwidth that collectives reach."""
    latency: float = 15e-6
    """Seconds that a message takes at least, to each neighbour."""
    layer: float = 30e-6
    """Seconds that a layer costs beside its arithmetic, in each direction."""
    host: float = 20.0
    """GB/s between a device and its machine's memory."""
    step: float = 5e-3
    """Seconds that a step costs beside everything else."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step, by term."""

    compute: float
    exchange: float
    """In which a micro-batch waits for what cut layers exchange."""
    bubble: float
    gradients: float
    """In which a step waits for weights and gradients."""
    update: float

    @property
    def total(self) -> float:
        """Return the seconds of the step."""
        return self.compute + self.exchange + self.bubble + self.gradients + self.update

    def terms(self) -> dict[str, float]:
        """Return the seconds by name, of those above 0."""
        named = {
            "arithmetic": self.compute, "exchange in layers": self.exchange, "pipeline bubble": self.bubble,
            "weights and gradients": self.gradients, "update": self.update,
        }  # fmt: skip
        return {name: value for name, value in named.items() if value > 0}


@dataclass(frozen=True)
class Timing:
    """The speed of one cluster."""

    cluster: Cluster
    calibration: Calibration = Calibration()

    def message(self, traffic: Traffic) -> float:
        """Return the seconds of one kind of message, where nothing hides it."""
        if traffic.operation == "host":
            return traffic.bytes / (self.calibration.host * 1e9)
        if traffic.ways == 1:
            return 0.0
        bandwidth = self.cluster.bandwidth(traffic.ways, traffic.stride) * self.calibration.link
        hops = 1 if traffic.operation in ("send", "all_to_all") else min(traffic.ways - 1, 32)
        return traffic.sent / bandwidth + traffic.calls * hops * self.calibration.latency

    def layer(self, shape: ModelShape, layout: ProcessLayout, tokens: float, length: float, kept: float) -> float:
        """Return the seconds of one layer's forward pass over so many tokens of this process."""
        flops = tokens * shape.layer_flops(length, with_experts=bool(shape.experts)) / layout.tp
        products = 7 if shape.gated else 6
        each = flops / products
        known = self.calibration
        share = known.matmul * each / (each + known.half)
        moved = tokens * kept / (self.cluster.device.memory_bandwidth * 1e9 * known.memory)
        return flops / (self.cluster.device.tflops * 1e12 * share) + moved + known.layer

    def step(
        self,
        shape: ModelShape,
        workload: Workload,
        stage: Stage,
        state_traffic: Iterable[Traffic],
        micro_batch: int,
        kept: float,
        *,
        recompute: bool,
    ) -> StepTime:
        """Return the seconds of a step whose slowest stage this is; `kept` is what a layer keeps, in bytes a token."""
        layout = stage.weights.layout
        tokens = micro_batch * workload.length / layout.sequence
        micro_batches = ceil(workload.rows / (layout.data * micro_batch))
        # Backward: twice the products, once where the weights are frozen.
        passes = (2 if workload.adapted else 3) + (1 if recompute else 0)
        one = self.layer(shape, layout, tokens, workload.length, kept)
        head = tokens * shape.head_flops / layout.tp / (self.cluster.device.tflops * 1e12 * self.calibration.matmul)
        compute = passes * stage.layers * one + (passes if stage.has_head else 0) * head
        exchange = sum(
            self.message(each) * (1 - each.hidden)
            for each in model_traffic(shape, layout, workload, tokens, stage.layers, recompute=recompute)
        )
        bubble = (layout.pp - 1) / layout.vpp * (compute + exchange)
        computing = micro_batches * compute
        exposed = 0.0
        for each in state_traffic:
            seconds = self.message(each)
            exposed += max(seconds * (1 - each.hidden), seconds - computing)
        weights = stage.weights
        touched = weights.trained / max(1, layout.shard) * (16 + weights.slot_bytes)
        update = (
            touched / (self.cluster.device.memory_bandwidth * 1e9 * self.calibration.memory) + self.calibration.step
        )
        return StepTime(computing, micro_batches * exchange, bubble, exposed, update)

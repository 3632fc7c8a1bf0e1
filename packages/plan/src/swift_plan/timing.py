"""How long an optimizer step takes, by term: arithmetic, what is exchanged, the pipeline's bubble, the update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil

from swift.contracts import ProcessLayout, Traffic
from swift_plan.cluster import Cluster
from swift_plan.memory import Stage
from swift_plan.messages import MessageCost, MessageKind
from swift_plan.shape import ModelShape
from swift_plan.traffic import model_traffic, step_traffic
from swift_plan.workload import Workload

_HOPS = 32
"""Neighbours that a sum passes at most, one after the other: larger groups are gone through as trees."""
_WITHIN = 0.25
"""How long a message takes to a neighbour of the same machine, of what it takes to another machine: NCCL's own model
has 3.4 and 14 microseconds (src/graph/tuning.cc)."""
_TIE = 4
"""The power with which two times that run beside each other add up: none at 1, the larger alone at infinity."""


@dataclass(frozen=True)
class Speeds:
    """How far a machine stays behind its data sheet. The defaults are assumed; measured rows replace them."""

    matmul: float = 0.72
    """The share of the peak that large matrix products reach."""
    narrow: float = 80.0
    """Width of a matrix, as one process has it, at which products reach half of that."""
    memory: float = 0.7
    """The share of the memory's bandwidth that is reached."""
    link: float = 0.75
    """The share of the bandwidth within a machine that collectives reach."""
    network: float = 0.6
    """The share of the bandwidth between machines that collectives reach."""
    latency: float = 12e-6
    """Seconds that a message takes at least, to each neighbour."""
    layer: float = 100e-6
    """Seconds that a layer costs beside its arithmetic, in each pass."""
    launch: float = 400e-6
    """Seconds in which a process hands one pass of a layer to its device: the device is never faster than that."""
    attention: float = 0.6
    """The speed of fused attention, of that of products: it is reported at 35 % (FlashAttention-2 on H100) to 75 % of
    the peak (FlashAttention-3). Assumed as well."""
    fp8: float = 1.6
    """How many times as fast products in FP8 are, where a device has it: twice by its data sheet, less the casts. No
    rows are asked for it, so that it stays assumed."""
    host: float = 20.0
    """GB/s between a device and its machine's memory."""
    step: float = 5e-3
    """Seconds that a step costs beside everything else."""


_SCORES_BACKWARD = 2.5
"""Products of fused attention's backward pass for each of its forward pass: it computes the scores again."""


EXCHANGE, GRADIENTS = "exchange in layers", "weights and gradients"
"""Terms of a step that are made of messages."""


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
    launches: float = 0.0
    """In which devices wait until their process has handed them the next kernel."""
    generation: float = 0.0
    """Generation of completions per step."""
    scoring: float = 0.0
    """Scoring of completions by models."""
    roles: float = 0.0
    """Steps of other models than the policy."""
    measured: frozenset[str] = frozenset()
    """Names of the terms whose messages were all measured on such a machine."""

    @property
    def total(self) -> float:
        """Return the seconds of the step."""
        policy = self.compute + self.exchange + self.launches + self.bubble + self.gradients + self.update
        return policy + self.generation + self.scoring + self.roles

    def terms(self) -> dict[str, float]:
        """Return the seconds by name, of those above 0."""
        named = {
            "arithmetic": self.compute, EXCHANGE: self.exchange, "waiting for kernels": self.launches,
            "pipeline bubble": self.bubble, GRADIENTS: self.gradients, "update": self.update,
            "generation": self.generation, "scoring": self.scoring, "steps of other models": self.roles,
        }  # fmt: skip
        return {name: value for name, value in named.items() if value > 0}


@dataclass(frozen=True)
class Timing:
    """The speed of one cluster."""

    cluster: Cluster
    calibration: Speeds = Speeds()
    messages: Mapping[MessageKind, MessageCost] = field(default_factory=dict)
    """What was measured of messages within one such machine."""

    def _measured(self, traffic: Traffic) -> MessageCost | None:
        """Return what was measured of such messages, if anything was."""
        return self.messages.get(MessageKind.of(traffic)) if self.messages else None

    def _all_measured(self, messages: Iterable[Traffic]) -> bool:
        """Return whether there are messages, and all of them were measured."""
        sent = [each for each in messages if each.operation == "host" or each.ways > 1]
        return bool(sent) and all(self._measured(each) is not None for each in sent)

    def message(self, traffic: Traffic) -> float:
        """Return the seconds of one kind of message, where nothing hides it."""
        if traffic.operation == "host":
            return traffic.bytes / (self.calibration.host * 1e9)
        if traffic.ways == 1:
            return 0.0
        if (measured := self._measured(traffic)) is not None:
            return measured.seconds(traffic.sent, traffic.calls)
        apart = traffic.ways * traffic.stride > self.cluster.per_machine
        share = self.calibration.network if apart else self.calibration.link
        alone = traffic.operation in ("send", "all_to_all")
        if alone:
            bandwidth = self.cluster.port(traffic.ways, traffic.stride, to_all=traffic.operation == "all_to_all")
        else:
            bandwidth = self.cluster.bandwidth(traffic.ways, traffic.stride)
        hops = 1.0 if alone else self._hops(traffic)
        return traffic.sent / (bandwidth * share) + traffic.calls * hops * self.calibration.latency

    def _hops(self, traffic: Traffic) -> float:
        """Return how many neighbours a collective passes, one after the other.

        What is gathered or scattered goes around a ring of all, as NCCL has no tree for it: most neighbours of a large
        group are of the same machine.
        """
        if traffic.operation == "all_reduce" or traffic.ways <= _HOPS:
            return min(traffic.ways - 1, _HOPS)
        machines = ceil(traffic.ways * traffic.stride / self.cluster.per_machine)
        return max(_HOPS, min(traffic.ways, machines) - 1 + _WITHIN * max(0, traffic.ways - machines))

    def layer(
        self, shape: ModelShape, layout: ProcessLayout, tokens: float, length: float, kept: float, *, fp8: bool = False
    ) -> tuple[float, float]:
        """Return the seconds of one layer's forward pass over so many tokens of this process, and of its attention."""
        known = self.calibration
        products = shape.layer_flops(0.0, with_experts=bool(shape.experts))
        scores = shape.layer_flops(length, with_experts=bool(shape.experts)) - products
        # Attention's scores stay in the precision around them.
        quicker = known.fp8 if fp8 and self.cluster.device.fp8 else 1.0
        each = tokens / layout.tp
        width = shape.hidden / layout.tp
        share = known.matmul * width / (width + known.narrow)
        # What a layer keeps for its backward pass was written, and is read by what follows.
        moved = 2 * tokens * kept / (self.cluster.device.memory_bandwidth * 1e9 * known.memory)
        speed = self.cluster.device.tflops * 1e12 * share
        return each * products / quicker / speed + moved + known.layer, each * scores / (speed * known.attention)

    def generation(self, shape: ModelShape, rows: float, prompt: float, completion: float, size: float) -> float:
        """Return the seconds in which one device draws so many answers at once, all of full length.

        For each token all weights are read that some row passes through, and the caches of all rows.
        """
        known, device = self.calibration, self.cluster.device
        speed, read = device.tflops * 1e12 * known.matmul, device.memory_bandwidth * 1e9 * known.memory
        weights = size * min(shape.parameters, shape.active_parameters * rows)
        caches = rows * (prompt + completion / 2) * 2 * shape.layers * shape.keys * size
        products = 2.0 * shape.active_parameters * rows
        token = max((weights + caches) / read, products / speed, shape.layers * known.launch)
        return max(prompt * products / speed, shape.layers * known.launch) + completion * token

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
        layout, known = stage.weights.layout, self.calibration
        tokens = micro_batch * workload.row_tokens / layout.sequence
        micro_batches = ceil(workload.rows / (layout.data * micro_batch))
        # Backward: twice the products, once where the weights are frozen.
        whole = 2 if workload.adapted else 3
        passes = whole + (1 if recompute else 0)
        products, scores = self.layer(shape, layout, tokens, workload.length, kept, fp8=workload.fp8)
        attention = (1 + _SCORES_BACKWARD + (1 if recompute else 0)) * scores
        layers = stage.layers * (passes * products + attention)
        head = tokens * shape.head_flops / layout.tp / (self.cluster.device.tflops * 1e12 * known.matmul)
        compute = layers + (whole if stage.has_head else 0) * head
        in_layers = list(model_traffic(shape, layout, workload, tokens, stage.layers, recompute=recompute))
        exchange = sum(self.message(each) * (1 - each.hidden) for each in in_layers)
        # Kernels are handed over while others run: the slower of the two decides, with a little of both where they tie.
        busy, handing = layers + exchange, passes * stage.layers * known.launch
        waiting = (busy**_TIE + handing**_TIE) ** (1 / _TIE) - busy
        bubble = (layout.pp - 1) / layout.vpp * (layers + exchange + waiting)
        computing = micro_batches * compute
        # All of it hides behind the same arithmetic, as far as it can.
        exposed = hiding = 0.0
        of_state = (*state_traffic, *step_traffic(shape, layout))
        for each in of_state:
            seconds = self.message(each)
            exposed += seconds * (1 - each.hidden)
            hiding += seconds * each.hidden
        exposed += max(0.0, hiding - computing)
        weights = stage.weights
        touched = weights.trained / max(1, layout.shard) * (16 + weights.slot_bytes)
        update = touched / (self.cluster.device.memory_bandwidth * 1e9 * known.memory) + known.step
        terms = ((EXCHANGE, in_layers), (GRADIENTS, of_state)) if self.messages else ()
        return StepTime(
            computing, micro_batches * exchange, bubble, exposed, update, launches=micro_batches * waiting,
            measured=frozenset(name for name, messages in terms if self._all_measured(messages)),
        )  # fmt: skip

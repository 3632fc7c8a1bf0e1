"""Which layouts there are, which of them fit, and which is fastest."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from math import ceil, isqrt
from typing import Any

from swift.config.sections import Config
from swift.contracts import Basis, ProcessLayout, RequestedRun
from swift.errors import PluginError, SwiftError
from swift.planning import PlannedBackend
from swift_plan.cluster import CPU, Cluster
from swift_plan.ledger import known_timing
from swift_plan.machine import this_machine
from swift_plan.memory import Activations, Instant, KeptState, Stage, StagesOf, TracedMemory, split
from swift_plan.other_memory import OtherMemory
from swift_plan.shape import ModelShape, config_of, shape_of
from swift_plan.timing import Speeds, StepTime, Timing
from swift_plan.workload import Workload

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
MARGIN = 0.08
"""The part of a counted peak that is left free: what allocators lose, and buffers that nobody counts."""
_CUT = ("tp", "pp", "cp", "ulysses", "ep", "etp")


@dataclass(frozen=True)
class Candidate:
    """One layout of one backend with one micro-batch, and what it is expected to take."""

    backend: PlannedBackend
    layout: ProcessLayout
    parallel: Mapping[str, Any]
    stages: tuple[int, ...]
    """Layers of each stage of the pipeline, where they differ."""
    micro_batch: int
    recompute: bool
    state: KeptState
    instant: Instant
    """The one at which the process with the most has most."""
    clock: Callable[[Timing], StepTime]
    """Estimates the time, which most plans that do not fit are never asked for."""
    timing: Timing
    basis: Basis = "counted"
    """What is known of its activations."""
    program: float = 0.0
    """Bytes that a process on the CPU takes before it has a model."""

    @cached_property
    def time(self) -> StepTime:
        """Return what a step takes, by term."""
        return self.clock(self.timing)

    def predict(self, speeds: Speeds) -> float:
        """Return the seconds of a step at other speeds of the devices."""
        return self.clock(replace(self.timing, calibration=speeds)).total

    @cached_property
    def memory(self) -> Mapping[str, float]:
        """Return the bytes of the process with the most, by term."""
        program = {"Python, torch and transformers": self.program} if self.program else {}
        return {**program, **self.instant.terms(self.state)}

    @property
    def peak(self) -> float:
        """Return the bytes that the process with the most has on its device."""
        return self.instant.total + self.program

    @property
    def host(self) -> float:
        """Return the bytes that it has in its machine's memory, of what belongs to the training state."""
        return self.state.host

    def fits(self, cluster: Cluster) -> bool:
        """Return whether there is memory enough, with room for what was not counted."""
        return self.peak * (1 + MARGIN) <= cluster.capacity and self.host <= cluster.host_capacity


@dataclass(frozen=True)
class _Filled:
    """A layout with a micro-batch, and what its stages hold."""

    runs: dict[bool, RequestedRun]
    """Recomputed and not, as far as anybody has asked."""
    parallel: Mapping[str, Any]
    stages: tuple[int, ...]
    micro_batch: int
    accumulation: int
    held: Sequence[Stage]
    states: Sequence[KeptState]

    @property
    def layout(self) -> ProcessLayout:
        """Return the sizes of all parallel dimensions."""
        return self.held[0].weights.layout


@dataclass
class FoundPlans:
    """The result of a search."""

    fitting: list[Candidate] = field(default_factory=list)
    """Fastest first."""
    nearest: list[Candidate] = field(default_factory=list)
    """Of those that do not fit, with the least memory first."""
    tried: int = 0
    refused: dict[str, SwiftError] = field(default_factory=dict)
    """By backend, why it takes no part; or an example of why a layout is not legal."""


def divisors(number: int) -> list[int]:
    """Return all divisors of a number, from the least."""
    small = [each for each in range(1, isqrt(number) + 1) if number % each == 0]
    return small + [number // each for each in reversed(small) if each * each != number]


class BackendSearch:
    """All layouts of one backend for one run on one cluster."""

    def __init__(
        self, backend: PlannedBackend, shape: ModelShape, config: Mapping[str, Any], cluster: Cluster, timing: Timing,
        trace: TracedMemory | None = None, workload: Workload | None = None,
    ) -> None:  # fmt: skip
        self.trace = trace
        self.backend, self.shape, self.config, self.cluster, self.timing = backend, shape, config, cluster, timing
        self.world = cluster.devices
        self.workload = workload or _workload(backend, cluster)
        self.stages = StagesOf(backend, shape, self.workload)
        self.other = OtherMemory(backend, shape, self.workload, cluster)
        self.refused: SwiftError | None = None
        self.tried = 0

    @cached_property
    def _typed(self) -> dict[str, Any]:
        """Return what the user has settled."""
        parallel = self.backend.config.parallel
        return {name: getattr(parallel, name) for name in parallel.model_fields_set}

    def _ways(self, name: str) -> list[int]:
        """Return the sizes of one dimension that are tried."""
        if name in self._typed:
            return [int(self._typed[name] or 1)]
        if name not in self.backend.dimensions:
            return [1]
        if name == "tp":
            # Past a machine, what every layer exchanges would go through the network.
            limit = min(self.world, max(8, self.cluster.per_machine))
            return [each for each in divisors(self.world) if each <= limit]
        if name == "pp":
            return [each for each in divisors(self.world) if each <= self.shape.layers]
        if name in ("cp", "ulysses"):
            return [each for each in divisors(self.world) if each <= max(1, self.workload.length // 1024)]
        if name in ("ep", "etp"):
            experts = self.shape.experts
            most = experts if name == "ep" else (4 if experts else 1)
            return [each for each in divisors(self.world) if each <= most] or [1]
        return [1]

    def _cuts(self) -> Iterator[dict[str, Any]]:
        """Yield the sizes that decide what a process has of the model, of those that the backend takes for it."""
        chooses = "sequence_parallel" in self.backend.dimensions and "sequence_parallel" not in self._typed
        for tp, pp, ep, etp in product(*map(self._ways, ("tp", "pp", "ep", "etp"))):
            for vpp in self._virtual(pp):
                cut = {"tp": tp, "pp": pp, "vpp": vpp, "ep": ep, "etp": etp}
                if chooses:
                    cut["sequence_parallel"] = tp > 1
                if self._legal_model(cut):
                    yield cut

    def _virtual(self, pp: int) -> list[int]:
        if "vpp" in self._typed:
            return [int(self._typed["vpp"] or 1)]
        if pp == 1 or "vpp" not in self.backend.dimensions:
            return [1]
        layers = self.shape.layers
        return [
            each
            for each in range(1, 9)
            if pp * each <= layers and (self.backend.names_stages or layers % (pp * each) == 0)
        ]

    def _legal_model(self, cut: Mapping[str, Any]) -> bool:
        stages = split(self.shape.layers, cut["pp"], cut["vpp"]) if self.backend.names_stages else ()
        run = self.backend.run(cut, self.world, stages=stages)
        refused = self.backend.refusal_of_model(run, self.config)
        if refused is not None:
            self.refused = self.refused or refused
        return refused is None

    def layouts(self) -> Iterator[tuple[dict[str, Any], ProcessLayout, RequestedRun]]:
        """Yield the legal layouts, as the `parallel` section and as sizes."""
        for cut in self._cuts():
            for sequence in ("cp", "ulysses"):
                for ways in self._ways(sequence):
                    if sequence == "ulysses" and ways == 1 and "ulysses" not in self._typed:
                        continue  # the same as cp 1
                    shared = cut["tp"] * cut["pp"] * ways
                    data = self.world // shared
                    if self.world % shared or data > self.workload.rows:
                        continue
                    for replicate in self._replicas(data):
                        parallel = {**cut, sequence: ways, "dp_replicate": replicate, "dp_shard": data // replicate}
                        run = self.backend.run(parallel, self.world)
                        try:
                            layout = self.backend.layout(run)
                        except SwiftError as error:
                            self.refused = self.refused or error
                            continue
                        yield parallel, layout, run

    def _replicas(self, data: int) -> Sequence[int]:
        if "dp_shard" not in self.backend.dimensions:
            return (data,)
        if self._typed.get("dp_replicate") or self._typed.get("dp_shard"):
            replicate = self._typed.get("dp_replicate") or data // max(1, self._typed["dp_shard"])
            return (replicate,) if replicate and data % replicate == 0 else ()
        if "dp_replicate" not in self.backend.dimensions:
            return (1,)
        # Within a machine, or over all of them: what lies between is neither the least memory nor the least traffic.
        within = max(1, data // max(1, self.cluster.per_machine))
        return (1, within) if within > 1 and data % within == 0 else (1,)

    def candidates(self) -> Iterator[Candidate]:
        """Yield every legal layout with every micro-batch that fits the rows, recomputed and not."""
        for parallel, layout, run in self.layouts():
            sizes = split(self.shape.layers, layout.pp, layout.vpp)
            held = self.stages.under(layout, sizes)
            activations = Activations(self.backend, run, self.shape, self.workload, self.trace)
            states: dict[bool, list[KeptState] | None] = {}
            runs = {self.backend.config.train.gradient_checkpointing: run}
            for micro_batch in self._micro_batches(layout):
                accumulation = ceil(self.workload.rows / (layout.data * micro_batch))
                several = accumulation > 1
                if several not in states:
                    same = several == (self.backend.config.train.accumulation > 1)
                    states[several] = self.states(run if same else _with(run, self._accumulated[several]), held)
                kept = states[several]
                if kept is None:
                    self.refused = _silent(self.backend)
                    return
                one = _Filled(runs, parallel, sizes, micro_batch, accumulation, held, kept)
                yield from self.each(one, activations)

    @cached_property
    def _accumulated(self) -> dict[bool, Any]:
        """Return the section `train` with several micro-batches a step and with one."""
        train = self.backend.config.train
        return {each: train.model_copy(update={"accumulation": 2 if each else 1}) for each in (False, True)}

    def states(self, run: RequestedRun, held: Sequence[Stage]) -> list[KeptState] | None:
        """Return what the backend keeps on each stage."""
        states = [self.backend.memory(run, stage.weights) for stage in held]
        return None if None in states else [KeptState.of(state) for state in states if state is not None]

    def each(self, one: _Filled, activations: Activations) -> Iterator[Candidate]:
        """Yield a layout with its micro-batch, recomputed and not."""
        tokens = one.micro_batch * self.workload.row_tokens / one.layout.sequence
        slowest = max(one.held, key=lambda stage: stage.layers + self._head_in_layers * stage.has_head)
        for recompute in self._recomputes():
            states, other = one.states, None
            if not self.other.is_nothing:
                other = self.other.under(one.parallel, one.held, tokens, one.accumulation, recompute=recompute)
                states = [other.with_state(index, state) for index, state in enumerate(states)]
            instants = [
                activations.highest(stage, tokens, one.accumulation, state, recompute=recompute)
                for stage, state in zip(one.held, states, strict=True)
            ]
            if other is not None:
                instants = [other.highest(index, states[index], instant) for index, instant in enumerate(instants)]
            most = max(range(len(instants)), key=lambda index: instants[index].total)
            clock = partial(self._time, one, slowest, activations.layer, recompute=recompute)
            self.tried += 1
            yield Candidate(
                self.backend, one.layout, one.parallel, one.stages, one.micro_batch, recompute, states[most],
                instants[most], clock, self.timing, activations.basis,
            )  # fmt: skip

    def _time(self, one: _Filled, slowest: Stage, kept: float, timing: Timing, *, recompute: bool) -> StepTime:
        run = one.runs.get(recompute)
        if run is None:
            (other,) = one.runs.values()
            run = one.runs[recompute] = _with(other, self._recomputed[recompute])
        traffic = self.backend.traffic(run, one.held[0].weights, one.accumulation)
        step = timing.step(self.shape, self.workload, slowest, traffic, one.micro_batch, kept, recompute=recompute)
        return step if self.other.is_nothing else self.other.timed(step, timing, recompute=recompute)

    @cached_property
    def _recomputed(self) -> dict[bool, Any]:
        """Return the section `train` with recomputing and without."""
        train = self.backend.config.train
        return {each: train.model_copy(update={"gradient_checkpointing": each}) for each in (False, True)}

    @cached_property
    def _head_in_layers(self) -> float:
        shape = self.shape
        return shape.head_flops / shape.layer_flops(self.workload.length, with_experts=bool(shape.experts))

    def _micro_batches(self, layout: ProcessLayout) -> list[int]:
        train = self.backend.config.train
        if "micro_batch" in train.model_fields_set:
            return [train.micro_batch]
        return [each for each in MICRO_BATCHES if self.workload.rows % (layout.data * each) == 0] or [1]

    def _recomputes(self) -> tuple[bool, ...]:
        train = self.backend.config.train
        if "gradient_checkpointing" in train.model_fields_set:
            return (train.gradient_checkpointing,)
        return (False, True)


def _with(run: RequestedRun, train: Any) -> RequestedRun:
    """Return the same run with another section `train`."""
    return replace(run, config=run.config.model_copy(update={"train": train}))


def counted(
    backend: PlannedBackend,
    shape: ModelShape,
    config: Mapping[str, Any],
    cluster: Cluster,
    timing: Timing,
    *,
    tokens: int,
    compute_bytes: float,
    trace: TracedMemory | None = None,
) -> Candidate:
    """Return what is expected of a run as it is configured, whose largest step has so many tokens."""
    run, train = backend.run({}, cluster.devices), backend.config.train
    layout = backend.layout(run)
    rows = train.global_batch or train.micro_batch * train.accumulation * layout.data
    work = _workload(backend, cluster)
    length = max(1, tokens // rows // work.segments)
    work = replace(work, rows=rows, length=length, compute_bytes=compute_bytes, rows_assumed=False)
    one = BackendSearch(backend, shape, config, cluster, timing, trace, work)
    sizes = split(shape.layers, layout.pp, layout.vpp)
    held = one.stages.under(layout, sizes)
    accumulation = max(1, ceil(rows / (layout.data * train.micro_batch)))
    states = one.states(backend.run({}, cluster.devices, accumulation=2 if accumulation > 1 else 1), held)
    if states is None:
        raise _silent(backend)
    filled = _Filled({train.gradient_checkpointing: run}, {}, sizes, train.micro_batch, accumulation, held, states)
    plans = one.each(filled, Activations(backend, run, shape, work, trace))
    return next(plan for plan in plans if plan.recompute == train.gradient_checkpointing)


def counted_run(
    run: RequestedRun,
    *,
    config: Config | None = None,
    tokens: int | None = None,
    compute_bytes: float | None = None,
    level: int = 0,
) -> tuple[Cluster, Candidate]:
    """Return machines like this one, and what is expected of a run, or of one configured otherwise.

    Its largest step has so many `tokens`, or else samples as long as it allows.
    """
    path, task = run.config.model.path or "", run.config.model.task
    model = config_of(path, task)
    machines = run.world.machines
    where = this_machine(max(1, run.world.size // machines), machines)
    backend = PlannedBackend.of_run(run)
    if config is not None:
        backend = replace(backend, config=config)
    work, train = _workload(backend, where), backend.config.train
    rows = train.global_batch or train.micro_batch * train.accumulation * backend.layout(run).data
    tokens, size = tokens or rows * work.row_tokens, compute_bytes or work.compute_bytes
    trace = None
    if level:
        from swift_plan.tracing import Trace

        length = max(1, tokens // rows // work.segments)
        trace = Trace.begun(backend, model, length=length, compute_bytes=size, on_cpu=work.on_cpu)
    shape, timing = shape_of(model, path, task), known_timing(where)
    return where, counted(backend, shape, model, where, timing, tokens=tokens, compute_bytes=size, trace=trace)


def _workload(backend: PlannedBackend, cluster: Cluster) -> Workload:
    return Workload.of(backend, processes=cluster.devices, on_cpu=cluster.device.name == CPU)


def _silent(backend: PlannedBackend) -> PluginError:
    return PluginError(
        f"The {backend.name} backend does not estimate memory.", hint="It lacks the hook swift_estimate_memory."
    )


def search(
    backends: Sequence[PlannedBackend],
    shape: ModelShape,
    config: Mapping[str, Any],
    cluster: Cluster,
    timing: Timing,
    *,
    most: int = 12,
    traces: Mapping[PlannedBackend, TracedMemory] | None = None,
) -> FoundPlans:
    """Return the best plans of all backends: what fits, fastest first, and what comes nearest to fitting."""
    found = FoundPlans()
    fitting: list[Candidate] = []
    others: list[Candidate] = []
    with _nothing_collected():
        for backend in backends:
            one = BackendSearch(backend, shape, config, cluster, timing, (traces or {}).get(backend))
            for candidate in one.candidates():
                (fitting if candidate.fits(cluster) else others).append(candidate)
            found.tried += one.tried
            if one.tried == 0 and one.refused is not None:
                found.refused[backend.variant or backend.name] = one.refused
        fitting.sort(key=lambda candidate: candidate.time.total)
    others.sort(key=lambda candidate: (candidate.host > cluster.host_capacity, candidate.peak))
    found.fitting = legal(_best_of_each(fitting), cluster.devices, most, found.refused)
    found.nearest = legal(others, cluster.devices, 3, found.refused)
    return found


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Keep Python from looking for garbage among plans that all stay: that took a fifth of a search."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _best_of_each(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the first of each layout: among its micro-batches the fastest, or one nearly as fast that keeps less.

    Layouts that differ only in the parts of a pipeline's stages are one; of nearly equal ones the fewest parts stay. So
    are modes of a backend that need the same memory, as ZeRO 1 and 2 on one device.
    """
    best: dict[Any, Candidate] = {}
    seen: set[Any] = set()
    for candidate in candidates:
        layout = candidate.layout
        # How data parallel processes are grouped is nothing to tell apart where it changes no memory.
        alike = replace(layout, replicate=1, shard=layout.data)
        same = (candidate.backend.name, alike, candidate.micro_batch, candidate.recompute, round(candidate.peak / 1e6))
        if same in seen:
            continue
        seen.add(same)
        key = (candidate.backend, replace(layout, vpp=1))
        first = best.setdefault(key, candidate)
        near = candidate.time.total <= 1.02 * first.time.total and candidate.recompute == first.recompute
        kept = best[key]
        if near and (candidate.peak < 0.9 * first.peak or layout.vpp < kept.layout.vpp):
            best[key] = candidate
    return sorted(best.values(), key=lambda candidate: candidate.time.total)


def legal(candidates: Sequence[Candidate], world: int, most: int, refused: dict[str, SwiftError]) -> list[Candidate]:
    """Return the first that their backends take, by the code that refuses plans when a run begins."""
    taken: list[Candidate] = []
    for candidate in candidates:
        if len(taken) == most:
            break
        run = candidate.backend.run(
            candidate.parallel,
            world,
            stages=candidate.stages,
            micro_batch=candidate.micro_batch,
            gradient_checkpointing=candidate.recompute,
        )
        error = candidate.backend.refusal(run)
        if error is None:
            taken.append(candidate)
        else:
            refused.setdefault(candidate.backend.variant or candidate.backend.name, error)
    return taken

"""Memory and time besides the policy's steps: roles, models of engines, generation and scoring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

from swift.contracts import HOST, LocalWeights, ModelRole
from swift.planning import CAUSAL_LM, EngineModel, PlannedBackend, RoundWork, row_bytes, rows_at_once
from swift_plan.cluster import Cluster
from swift_plan.memory import Activations, Instant, KeptState, Stage, StagesOf, split
from swift_plan.shape import ModelShape, config_of, shape_of
from swift_plan.timing import StepTime, Timing
from swift_plan.workload import Workload

GENERATION = "KV cache of rollouts"


@dataclass(frozen=True)
class _Role:
    """A model of the run besides the policy, as the backend holds it."""

    role: ModelRole
    backend: PlannedBackend
    shape: ModelShape
    workload: Workload
    stages: StagesOf
    length: float
    """Times so long as the policy a pass of this model takes."""


class OtherMemory:
    """Estimates it for a run, for any layout."""

    def __init__(self, backend: PlannedBackend, policy: ModelShape, workload: Workload, cluster: Cluster) -> None:
        self.work: RoundWork = backend.rounds
        self._backend, self._policy, self._workload, self._cluster = backend, policy, workload, cluster
        self._shapes: dict[str, ModelShape] = {}

    @cached_property
    def is_nothing(self) -> bool:
        """Return whether there is nothing to count, as for most runs."""
        return self.work == RoundWork() and not self._roles

    @cached_property
    def _roles(self) -> Sequence[_Role]:
        return [self._role(each) for each in self._backend.roles]

    def _role(self, role: ModelRole) -> _Role:
        backend = self._backend.of_role(role)
        shape = replace(self._shape(role.model.path, role.model.task), unembeds=role.model.task == CAUSAL_LM)
        own = Workload.of(backend, processes=self._cluster.devices, on_cpu=self._workload.on_cpu)
        adapted = own.adapted and role.trained
        workload = replace(self._workload, quantize=own.quantize, adapted=adapted, drops=own.drops)
        length = shape.active_parameters / self._policy.active_parameters
        return _Role(role, backend, shape, workload, StagesOf(backend, shape, workload), length)

    def _shape(self, model: str | None, task: str = CAUSAL_LM) -> ModelShape:
        """Return the sizes of a model that is named; the policy's where it is the same, or cannot be looked at."""
        if model is None or model == self._policy.name:
            return self._policy
        if model not in self._shapes:
            self._shapes[model] = shape_of(config_of(model, task), model, task)
        return self._shapes[model]

    def under(
        self, parallel: Mapping[str, Any], held: Sequence[Stage], tokens: float, micro_batches: int, *, recompute: bool
    ) -> LayoutMemory:
        """Return what all of it takes besides the policy's stages, with micro-batches of so many tokens."""
        layout = held[0].weights.layout
        always: list[dict[str, float]] = [{} for _ in held]
        peaks: list[tuple[str, Sequence[float]]] = []
        for each in self._roles:
            run = each.backend.run(parallel, self._cluster.devices, accumulation=2 if micro_batches > 1 else 1)
            stages = each.stages.under(layout, split(each.shape.layers, layout.pp, layout.vpp))
            stages = stages if each.role.trained else [replace(stage, weights=_frozen(stage)) for stage in stages]
            states = [KeptState.of(each.backend.memory(run, stage.weights) or {}) for stage in stages]
            for index, terms in enumerate(always):
                state = states[min(index, len(states) - 1)]
                terms.update({_named(each.role.name, name): size for name, size in state.always.items()})
            if each.role.trained:
                activations = Activations(each.backend, run, each.shape, each.workload)
                instants = [
                    activations.highest(stage, tokens, micro_batches, state, recompute=recompute)
                    for stage, state in zip(stages, states, strict=True)
                ]
                above = [instant.total - state.sizes[0] for instant, state in zip(instants, states, strict=True)]
                peaks.append((f"a step of the {each.role.name}", above))
        for name, size, everywhere in self._engines():
            for index, terms in enumerate(always):
                if everywhere or index == 0:
                    terms[name] = terms.get(name, 0.0) + size
        if self.work.completions and self.work.sampled_here:
            peaks.append((GENERATION, [self._at_once * self._row]))
        return LayoutMemory(always, peaks)

    def _engines(self) -> list[tuple[str, float, bool]]:
        """Return name, bytes and whether every process has it, of all models that engines hold whole."""
        held = {each.role.name for each in self._roles}
        missing = [EngineModel(f"engine of the {name}") for name in self.work.role_forwards if name not in held]
        size = self._workload.compute_bytes
        return [
            (each.name, self._shape(each.model).parameters * size, each.everywhere)
            for each in (*self.work.engines, *missing)
        ]

    @cached_property
    def _row(self) -> float:
        """Return the bytes that the cache of a completion takes when it is complete."""
        shape = self._policy
        of_token = 2 * shape.layers * shape.keys * self._workload.compute_bytes
        return row_bytes(shape.vocabulary, of_token, int(self._workload.length))

    @cached_property
    def _at_once(self) -> float:
        """Return how many completions a process generates at once."""
        mine = max(1.0, self._workload.rows * self.work.completions / self._samplers)
        most = self.work.at_once or rows_at_once(self._cluster.device.gigabytes * 1e9, self._row)
        return min(mine, most)

    @cached_property
    def _samplers(self) -> int:
        """Return how many processes generate completions."""
        return self._cluster.devices if any(each.everywhere for each in self.work.engines) else 1

    def timed(self, step: StepTime, timing: Timing, *, recompute: bool) -> StepTime:
        """Return the time of a step of the policy with that of the other work."""
        passes = (2 if self._workload.adapted else 3) + recompute
        forward = (step.compute + step.exchange + step.launches + step.bubble) / passes
        scored = self.work.scored
        steps = 0.0
        for each in self._roles:
            scored += each.length * self.work.role_forwards.get(each.role.name, 0.0)
            steps += each.length * step.total if each.role.trained else 0.0
        generation = 0.0
        if self.work.completions and self.work.sampled_here:
            mine = self._workload.rows * self.work.completions / self._samplers
            prompt, size = max(0, self._workload.length - self.work.completion_tokens), self._workload.compute_bytes
            once = timing.generation(self._policy, self._at_once, prompt, self.work.completion_tokens, size)
            generation = ceil(mine / self._at_once) * once
        return replace(step, generation=generation, scoring=scored * forward, roles=steps)


@dataclass(frozen=True)
class LayoutMemory:
    """Bytes of one layout, by stage of the policy."""

    always: Sequence[Mapping[str, float]]
    """What is held all the time, by name."""
    peaks: Sequence[tuple[str, Sequence[float]]]
    """What is there for a while, and never at the time of another or of the policy's step, besides all that is held."""

    def with_state(self, index: int, state: KeptState) -> KeptState:
        """Return what a stage keeps, with what is held besides it."""
        terms = self.always[index]
        on_device = sum(size for name, size in terms.items() if not name.startswith(HOST))
        host = sum(terms.values()) - on_device
        sizes = (state.sizes[0] + on_device, *state.sizes[1:])
        return replace(state, always={**state.always, **terms}, sizes=sizes, host=state.host + host)

    def highest(self, index: int, state: KeptState, instant: Instant) -> Instant:
        """Return the instant at which a stage has most: that of the policy's step, or one between steps."""
        for name, sizes in self.peaks:
            above = sizes[min(index, len(sizes) - 1)]
            total = state.sizes[0] + above
            if total > instant.total:
                instant = Instant(name, 0.0, above, 0.0, False, total)
        return instant


def _named(role: str, term: str) -> str:
    """Return the name of a role's term, which says first whether it lies in the machine's memory."""
    return f"{HOST}{role}: {term.removeprefix(HOST)}" if term.startswith(HOST) else f"{role}: {term}"


def _frozen(stage: Stage) -> LocalWeights:
    weights = stage.weights
    return replace(
        weights,
        trained=0.0,
        frozen=weights.trained + weights.frozen,
        trained_experts=0.0,
        frozen_experts=weights.trained_experts + weights.frozen_experts,
    )

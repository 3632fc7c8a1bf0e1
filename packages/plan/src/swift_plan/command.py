"""`swift plan MODEL --gpus 8xH100`: which layouts fit, which is fastest, and what to type."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from swift.errors import ModelError, SwiftError, UsageError
from swift.planning import PlannedBackend, planned_backends
from swift_plan.cluster import CPU, Cluster, cluster
from swift_plan.known import config_of
from swift_plan.memory import TracedMemory
from swift_plan.options import PlanOptions
from swift_plan.search import Candidate, FoundPlans, search
from swift_plan.shape import ModelShape, shape_of
from swift_plan.timing import Timing
from swift_plan.workload import Workload

NOTHING_FITS = 3
"""Exit code where no plan fits, for scripts."""


class PlanCommand:
    """Implements `swift.contracts.Command`."""

    summary = "Will it fit, which layout, how fast, at what cost: before anything is started"
    options_model = PlanOptions
    passes_on = True

    def run(self, options: PlanOptions, words: Sequence[str]) -> int:
        """Search, and print the best plans; return the exit code."""
        planned = Planned.of(options, words)
        if options.json_out:
            _say(json.dumps(planned.as_json(), indent=2))
        else:
            planned.show()
        return 0 if planned.found.fitting else NOTHING_FITS


class Planned:
    """A question and the plans that answer it."""

    def __init__(
        self,
        options: PlanOptions,
        words: Sequence[str],
        shape: ModelShape,
        where: Cluster,
        found: FoundPlans,
        work: Workload,
    ) -> None:
        self.options, self.words, self.shape = options, words, shape
        self.cluster, self.found, self.workload = where, found, work

    @classmethod
    def of(cls, options: PlanOptions, words: Sequence[str]) -> Planned:
        """Search through the layouts for the devices that the options name."""
        return cls.on(replace(cluster(options.gpus), host_gigabytes=options.host_memory), options, words)

    @classmethod
    def on(cls, where: Cluster, options: PlanOptions, words: Sequence[str]) -> Planned:
        """Search through the layouts of all backends that take the run."""
        config = config_of(options.model)
        shape = shape_of(config, options.model)
        backends, refused = planned_backends(["--model", options.model, *words], options.kind)
        if not backends:
            raise next(iter(refused.values()))
        work = Workload.of(backends[0], processes=where.devices, on_cpu=where.device.name == CPU)
        if backends[0].config.train.global_batch is not None and where.devices > work.rows * _sharing(backends):
            raise UsageError(
                f"{where.devices} devices for {work.rows} rows a step: some would have no row of their own.",
                hint=f"Type --global_batch_size {where.devices} or more, or fewer devices.",
            )
        traces, untraced = _traces(backends, config, work) if options.level else ({}, {})
        most = max(100, options.top, options.explain or 1)
        found = search(backends, shape, config, where, Timing(where), most=most, traces=traces)
        found.refused = {**refused, **untraced, **found.refused}
        return cls(options, words, shape, where, found, work)

    def command(self, candidate: Candidate) -> str:
        """Return what is typed for a plan."""
        from swift_plan.screen import command

        words = ["--model", self.options.model, *self.words]
        return command(candidate, words, self.options.kind, self.cluster, self.workload)

    def show(self) -> None:
        """Print the plans for people."""
        from swift_plan import screen

        title, rows = screen.lines(self.found, self.workload, self.cluster, self.options.price)
        _say(screen.heading(self.shape, self.workload, self.cluster))
        _say(title)
        _say(screen.table([rows[0], *(rows[1 + index] for index in self._shown())]))
        behind = screen.next_best(self.found)
        if behind is not None:
            _say(behind)
        explained = self._explained()
        if explained is not None:
            _say(f"\nPlan {self.options.explain or 1}, {screen.label(explained)}:")
            _say(screen.table(screen.terms(explained, self.cluster.device.name)))
            _say(f"Type: {self.command(explained)}\n")
        _say(screen.thumb(self.shape, self.workload))
        for name, error in self.found.refused.items():
            _say(f"{name} is refused in some layouts: {error.message}")
        basis = explained.basis if explained is not None else "counted"
        _say(f"{self.found.tried:,} plans were compared. Memory is {basis}; times assume usual efficiencies.")

    def _shown(self) -> list[int]:
        """Return which plans are shown: the first ones, and the first of every backend."""
        plans = self.found.fitting or self.found.nearest
        shown = set(range(min(self.options.top, len(plans))))
        seen = set()
        for index, plan in enumerate(plans):
            if plan.backend not in seen:
                seen.add(plan.backend)
                shown.add(index)
        return sorted(shown)

    def _explained(self) -> Candidate | None:
        shown = self.found.fitting or self.found.nearest
        index = (self.options.explain or 1) - 1
        if not shown:
            return None
        if index >= len(shown):
            raise UsageError(f"There is no plan {index + 1}: {len(shown)} were found.", hint="Type --explain 1")
        return shown[index]

    def as_json(self) -> Mapping[str, Any]:
        """Return everything that was found, for programs."""
        return {
            "model": {"name": self.shape.name, "parameters": self.shape.parameters},
            "cluster": str(self.cluster),
            "capacity_bytes": self.cluster.capacity,
            "rows": self.workload.rows,
            "length": self.workload.length,
            "compared": self.found.tried,
            "fits": [self._json(candidate) for candidate in self.found.fitting[: self.options.top]],
            "nearest": [self._json(candidate) for candidate in self.found.nearest],
            "refused": {name: error.message for name, error in self.found.refused.items()},
        }

    def _json(self, candidate: Candidate) -> Mapping[str, Any]:
        return {
            "backend": candidate.backend.name,
            "variant": candidate.backend.variant,
            "layout": candidate.layout.named(),
            "micro_batch": candidate.micro_batch,
            "recompute": candidate.recompute,
            "basis": {"memory": candidate.basis, "seconds": "assumed"},
            "memory_bytes": {name: round(size) for name, size in candidate.memory.items()},
            "peak_bytes": round(candidate.peak),
            "seconds": {**candidate.time.terms(), "step": candidate.time.total},
            "tokens_per_second": self.workload.tokens / candidate.time.total,
            "command": self.command(candidate),
        }


def _traces(
    backends: Sequence[PlannedBackend], config: Mapping[str, Any], work: Workload
) -> tuple[dict[PlannedBackend, TracedMemory], dict[str, SwiftError]]:
    """Trace a step of every backend that has no layers of its own; its variants share what was traced."""
    from swift_plan.tracing import Trace

    first: dict[str, TracedMemory] = {}
    failed: dict[str, SwiftError] = {}
    for backend in backends:
        if backend.name in first or backend.name in failed:
            continue
        try:
            first[backend.name] = Trace.begun(
                backend, config, length=work.length, compute_bytes=work.compute_bytes, on_cpu=work.on_cpu
            )
        except ModelError as error:
            failed[backend.name] = error
    return {each: first[each.name] for each in backends if each.name in first}, failed


def _sharing(backends: Sequence[PlannedBackend]) -> int:
    """Return how many processes may share a row: any number, where a backend cuts layers or sequences."""
    return 1 << 20 if any(backend.dimensions & {"tp", "pp", "cp", "ulysses"} for backend in backends) else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")

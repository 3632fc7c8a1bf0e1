"""`swift plan MODEL --gpus 8xH100`: which layouts fit, which is fastest, and what to type."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from swift.contracts import QuantizedShare
from swift.errors import ModelError, SwiftError, UsageError
from swift.hardware import DEVICES
from swift.model_names import resolve_name
from swift.models.quiet import quiet_libraries
from swift.planning import PlannedBackend, partly_quantized, planned_backends
from swift.terminal import print_line, result_alone, say_nothing
from swift_plan import ledger, screen
from swift_plan.cluster import CPU, Cluster, cluster
from swift_plan.collectives import ListeningTiming, timed, within
from swift_plan.failures import Reliability
from swift_plan.machine import this_machine
from swift_plan.measuring import HEADING, MeasuredPlan, MeasuredRun, keep, measured
from swift_plan.memory import TracedMemory
from swift_plan.messages import MessageCost, MessageKind
from swift_plan.options import PlanOptions
from swift_plan.search import Candidate, FoundPlans, search
from swift_plan.shape import ModelShape, config_of, shape_of
from swift_plan.timing import Timing
from swift_plan.workload import TrainedCount, Workload

_OF_FAILURES = frozenset({"save_seconds", "restart_seconds", "device_hours"})
_SHOWN = 5
"""Plans in JSON, and at most so many that do not fit, where `--top` is not typed."""
NOTHING_FITS = 3
"""Exit code where no plan fits, for scripts."""


class PlanCommand:
    """Implements `swift.contracts.Command`."""

    group = "Train"
    summary = "Predict memory, speed and cost of a run, and find the best layout"
    options_model = PlanOptions
    passes_on = True

    def run(self, options: PlanOptions, args: Sequence[str]) -> int:
        """Search, and print the best plans; return the exit code."""
        if options.json_out:
            with result_alone() as result:
                planned = self._planned(options, args, say_nothing)
                result(json.dumps(planned.as_json(), indent=2))
        else:
            planned = self._planned(options, args, print_line)
            planned.show()
        return 0 if planned.found.fitting else NOTHING_FITS

    def _planned(self, options: PlanOptions, args: Sequence[str], say: Callable[[str], None]) -> Planned:
        if options.level == 3:
            measure_messages(options, args, say)
        planned = Planned.on(_cluster(options), options, args)
        if options.measure or options.level == 2:
            planned.measure(say)
        return planned


@dataclass
class Planned:
    """Plans for a run, with their inputs."""

    options: PlanOptions
    args: Sequence[str]
    shape: ModelShape
    cluster: Cluster
    found: FoundPlans
    workload: Workload
    share: QuantizedShare | None = None
    measured: Sequence[MeasuredPlan] = ()

    @property
    def reliability(self) -> Reliability:
        """Return how often so many devices fail, and what that costs."""
        options = self.options
        return Reliability(self.cluster.devices, options.save_seconds, options.restart_seconds, options.device_hours)

    def measure(self, say: Callable[[str], None]) -> None:
        """Run the first plans, or blocks of them, on this machine."""
        _check_here(self.cluster)
        options, plans = self.options, self.found.fitting
        run = MeasuredRun(options.kind, options.model, self.args, self.workload, self.cluster, self.shape.layers)
        if options.measure:
            self.measured = measured(run, plans[: options.measure], say)
            keep(self.measured, self.cluster.device.name)
        else:
            whole = [plan for plan in plans if plan.layout.pp == 1]
            self.measured = measured(run, whole[: min(options.top or 3, 3)], say, by_blocks=True)

    @classmethod
    def on(cls, where: Cluster, options: PlanOptions, args: Sequence[str], timing: Timing | None = None) -> Planned:
        """Search through the layouts of all backends that take the run; times are what is known, or of `timing`."""
        backends, refused = planned_backends(["--model", options.model, *args], options.kind)
        if not backends:
            raise next(iter(refused.values()))
        task = backends[0].config.model.task
        config = config_of(options.model, task)
        shape = shape_of(config, resolve_name(options.model)[0], task)
        work = Workload.of(backends[0], processes=where.devices, on_cpu=where.device.name == CPU)
        if work.fp8 and not where.device.fp8 and not getattr(backends[0].backend_options, "fp8_emulated", False):
            able = ", ".join(device.name for device in DEVICES if device.fp8)
            raise UsageError(
                f"--backend.fp8: {where.device.name} does not support FP8.",
                hint=f"Use --backend.fp8 none, or a device with FP8: {able}",
            )
        # Processes share rows where a backend cuts layers or sequences.
        cuts = any(backend.dimensions & {"tp", "pp", "cp", "ulysses"} for backend in backends)
        if backends[0].config.train.global_batch is not None and not cuts and where.devices > work.rows:
            raise UsageError(
                f"A step has {work.rows} rows, fewer than the {where.devices} devices.",
                hint=f"Use --global_batch_size {where.devices} or more, or fewer devices.",
            )
        share = _share(backends[0], shape, work)
        traces, untraced = _traces(backends, config, work) if options.level else ({}, {})
        most = max(100, options.top or 1, options.explain or 1)
        timing = timing or ledger.known_timing(where)
        found = search(backends, shape, config, where, timing, most=most, traces=traces)
        found.refused = {**refused, **untraced, **found.refused}
        return cls(options, args, shape, where, found, work, share)

    def command(self, candidate: Candidate) -> str:
        """Return the command line of a plan."""
        path = Path(self.options.model)
        args = ["--model", str(path.parent if path.name == "config.json" else self.options.model), *self.args]
        return screen.command(candidate, args, self.options.kind, self.cluster, self.workload)

    def show(self) -> None:
        """Print the plans for people."""
        options, found, explained = self.options, self.found, self._explained()
        details = options.top or options.explain or not found.fitting
        print_line(screen.heading(self.shape, self.workload, self.cluster))
        if self.share is not None:
            print_line(f"{self.workload.quantize}: {self.share}.")
        self._show_plans(explained)
        behind = screen.next_best(found)
        if behind is not None:
            print_line(behind)
        if options.explain and explained is not None:
            print_line(f"\nPlan {options.explain}, {screen.label(explained)}:")
            print_line(screen.table(screen.terms(explained, self.cluster.device.name)))
        if explained is not None:
            print_line(f"Run: {self.command(explained)}")
        if self.measured:
            self._show_measured()
        if self.reliability.matters or options.model_fields_set & _OF_FAILURES:
            print_line(screen.failures(self.reliability, options.model_fields_set))
        if details:
            print_line(screen.thumb(self.shape, self.workload))
            for name, error in found.refused.items():
                print_line(f"{name} does not support some layouts: {error.message}")
        basis = str(explained.basis) if explained is not None else "counted"
        if explained is not None and basis == "counted" and explained.backend.config.train.compile:
            basis += " without torch.compile, which needs less: use --level 1 to trace it"
        more = "" if details else " --top 5 lists plans, --explain 1 shows memory and time by term."
        print_line(f"Compared {found.tried:,} plans. Memory is {basis}; {self._of_times()}{more}")

    def _show_plans(self, explained: Candidate | None) -> None:
        """Print the table of plans that is requested, or one plan in a line."""
        options, price = self.options, self.options.price
        if options.top or not self.found.fitting:
            title, rows = screen.lines(self.found, self.workload, self.cluster, price)
            print_line(title)
            print_line(screen.table([rows[0], *(rows[1 + index] for index in self._shown())]))
        elif explained is not None:
            title = f"Plan {options.explain}" if options.explain else "Fastest"
            print_line(f"{title}: {screen.summary(explained, self.workload, self.cluster, price)}")

    def _of_times(self) -> str:
        _, rows = ledger.known_speeds(self.cluster.device.name)
        times = f"times are based on {rows} runs on such devices" if rows else "times assume typical efficiencies"
        kinds = self._messages
        groups = len({(kind.ways, kind.stride) for kind in kinds})
        among = "one group" if groups == 1 else f"{groups} groups"
        known = f", except for {len(kinds)} measured kinds of messages in {among} of processes"
        return f"{times}{known if kinds else ''}."

    @cached_property
    def _messages(self) -> Mapping[MessageKind, MessageCost]:
        return ledger.known_messages(self.cluster)

    def _show_measured(self) -> None:
        how = "a few steps each" if self.options.measure else "two and four blocks, extrapolated"
        print_line(f"Measured on this machine ({how}), fastest first:")
        print_line(screen.table([HEADING, *(each.row() for each in self.measured)]))
        best = self.measured[0]
        if not best.trial.failure:
            print_line(f"Fastest measured plan. Run: {self.command(best.plan)}\n")

    def _shown(self) -> list[int]:
        """Return which plans are shown: the first ones, and the first of every backend."""
        plans = self.found.fitting or self.found.nearest
        shown = set(range(min(self.options.top or _SHOWN, len(plans))))
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
            raise UsageError(f"Unknown plan {index + 1}: {len(shown)} were found.", hint="Use --explain 1")
        return shown[index]

    def as_json(self) -> Mapping[str, Any]:
        """Return everything that was found, for programs."""
        return {
            "model": {"name": self.shape.name, "parameters": self.shape.parameters},
            "cluster": str(self.cluster),
            "capacity_bytes": self.cluster.capacity,
            "rows": self.workload.rows,
            "length": self.workload.length,
            "quantized": asdict(self.share) if self.share is not None else None,
            "compared": self.found.tried,
            "fits": [self._json(candidate) for candidate in self.found.fitting[: self.options.top or _SHOWN]],
            "nearest": [self._json(candidate) for candidate in self.found.nearest],
            "measured": [each.as_json() for each in self.measured],
            "messages": [
                {**kind._asdict(), "latency_seconds": cost.latency, "seconds_per_byte": cost.per_byte}
                for kind, cost in sorted(self._messages.items())
            ],
            "failures": {
                "between_seconds": self.reliability.between_failures,
                "checkpoint_every_seconds": self.reliability.interval,
                "useful": self.reliability.useful(),
            },
            "refused": {name: error.message for name, error in self.found.refused.items()},
        }

    def _json(self, candidate: Candidate) -> Mapping[str, Any]:
        return {
            "backend": candidate.backend.name,
            "variant": candidate.backend.variant,
            "layout": candidate.layout.named(),
            "micro_batch": candidate.micro_batch,
            "recompute": candidate.recompute,
            "basis": {
                "memory": candidate.basis,
                "seconds": "measured" if ledger.known_speeds(self.cluster.device.name)[1] else "assumed",
                "terms_measured": sorted(candidate.time.measured),
            },
            "memory_bytes": {name: round(size) for name, size in candidate.memory.items()},
            "peak_bytes": round(candidate.peak),
            "seconds": {**candidate.time.terms(), "step": candidate.time.total},
            "tokens_per_second": self.workload.tokens / candidate.time.total,
            "command": self.command(candidate),
        }


def _share(backend: PlannedBackend, shape: ModelShape, work: Workload) -> QuantizedShare | None:
    """Return how much of the model QLoRA quantizes; with `--strict` refuse what a run with it would refuse."""
    quantized = TrainedCount(backend, shape, work).quantized
    if quantized is None:
        return None
    if backend.config.data.strict and not quantized.share.complete:
        raise partly_quantized(work.quantize, str(quantized.share))
    return quantized.share


def measure_messages(options: PlanOptions, args: Sequence[str], say: Callable[[str], None]) -> None:
    """Time the messages of all layouts that fit, between real processes of this machine, and keep what was found."""
    where = _cluster(options)
    _check_here(where)
    recorded = ListeningTiming(where)
    Planned.on(where, options.model_copy(update={"level": 0}), args, recorded)
    kinds = within(recorded.kinds, where)
    if not kinds:
        raise UsageError(
            f"No layout that fits on {where} sends messages, so --level 3 has nothing to measure.",
            hint="Use --gpus with more of this machine's devices (2xCPU is two processes), or another level.",
        )
    say(f"Timing {len(kinds)} kinds of messages between {where.per_machine} processes of this machine:")
    ledger.keep_messages(where, timed(where, kinds, lambda kind, cost: say(f"  {kind}: {cost}")))


def _cluster(options: PlanOptions) -> Cluster:
    """Return the devices of `--gpus`."""
    own = re.fullmatch(r"(?:(\d+)x)?cpu", options.gpus.strip().lower())
    where = this_machine(int(own[1] or 1), 1) if own is not None else cluster(options.gpus)
    return replace(where, host_gigabytes=options.host_memory)


def _check_here(where: Cluster) -> None:
    """Raise `UsageError` if this machine cannot measure plans for the cluster."""
    here = this_machine(where.per_machine, 1)
    if where.machines != 1 or here.device.name != where.device.name:
        raise UsageError(
            f"Plans for {where} cannot be measured on this machine, which has {here.device.name}.",
            hint=f"Use --gpus {here}, run this command there, or use --level 0 or 1 without --measure.",
        )


def _traces(
    backends: Sequence[PlannedBackend], config: Mapping[str, Any], work: Workload
) -> tuple[dict[PlannedBackend, TracedMemory], dict[str, SwiftError]]:
    """Trace a step of every backend that has no layers of its own; its variants share what was traced."""
    quiet_libraries()  # before they are imported
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

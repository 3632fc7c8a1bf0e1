"""`--backend auto`: the best plan for the machine of a run, and its estimates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from swift.config.sections import Config
from swift.contracts import ChosenPlan, ExpectedMemory, RequestedRun
from swift.errors import UnsupportedLayout, UsageError
from swift_plan import screen
from swift_plan.cluster import CPU
from swift_plan.command import Planned
from swift_plan.machine import PROGRAM, this_machine
from swift_plan.options import PlanOptions
from swift_plan.search import Candidate, counted_run

_ALIKE = 0.05
"""Relative difference below which unmeasured times count as equal."""
_OF_PLANS = frozenset(
    {"backend", "deepspeed", "tp", "pp", "cp", "ep", "vpp", "etp", "ulysses", "dp_shard", "dp_replicate",
     "sequence_parallel", "per_device_train_batch_size", "train.micro_batch", "train.accumulation",
     "gradient_accumulation_steps", "gradient_checkpointing", "train.gradient_checkpointing"}
)  # fmt: skip
_MODEL = ("--model", "--model_id_or_path", "--model.path")


class Chooser:
    """Implements `swift.contracts.Planner`."""

    def choose(self, args: Sequence[str], command_name: str, processes: int, machines: int) -> ChosenPlan:
        """Return the flags of the fastest plan that fits."""
        model, others = _model(args)
        where = this_machine(processes, machines)
        planned = Planned.on(where, PlanOptions(model=model, gpus=str(where), kind=command_name), others)
        if not planned.found.fitting:
            nearest = "\n".join(f"  {line}" for line in screen.nearest(planned.found, where))
            raise UnsupportedLayout(
                f"No plan for {model} fits on {where}. Nearest plans, with the missing memory:\n{nearest}",
                hint="Use a smaller --max_length, --train_type lora or qlora, or more processes.",
            )
        best = simplest(planned.found.fitting)
        plan_flags = screen.flags(best, args, planned.workload)
        reason = [f"Chosen: {' '.join(plan_flags)} ({screen.label(best)}, {screen.gib(best.peak)} of memory each)"]
        fastest = planned.found.fitting[0]
        if best is not fastest:
            reason.append(f"It is simpler than {screen.label(fastest)}, and about as fast.")
        elif (behind := screen.next_best(planned.found)) is not None:
            reason.append(behind)
        return ChosenPlan(tuple(plan_flags), "\n".join(reason))

    def foresee(self, run: RequestedRun, args: Sequence[str], command_name: str) -> str | None:
        """Return a warning where a run takes more memory than there is, with the plans that do not."""
        path = run.config.model.path or ""
        where, planned = counted_run(run)
        if planned.peak <= where.capacity:
            return None
        options = PlanOptions(model=path, gpus=str(where), kind=command_name)
        others = Planned.on(where, options, list(_without_plan(_model(args)[1])))
        lacking = screen.gib(planned.peak - where.capacity)
        advice = [f"  {' '.join(screen.flags(plan, (), others.workload))}" for plan in others.found.fitting[:3]]
        instead = "Plans that fit:\n" + "\n".join(advice) if advice else "No other plan fits either."
        return (
            f"A process needs about {screen.gib(planned.peak)} for samples of --max_length "
            f"{run.config.data.max_length}, {lacking} more than available. {instead}"
        )

    def expect(self, run: RequestedRun, args: Sequence[str], command_name: str) -> ExpectedMemory:
        """Return what the fullest process of a run takes, with the bounds that past runs leave of such a figure."""
        where, planned = counted_run(run)
        on_cpu = where.device.name == CPU  # whose speed is a guess that ranks layouts
        peak, _ = screen.bars(planned, where.device.name)
        return ExpectedMemory(
            peak_bytes=peak.value,
            low_bytes=peak.low,
            high_bytes=peak.high,
            capacity_bytes=where.capacity,
            terms=planned.memory,
            basis=planned.basis,
            device=where.device.name,
            seconds=None if on_cpu else planned.time.total,
        )

    def lacking(self, run: RequestedRun, peak: float) -> str:
        """Return the estimated memory of a run that ran out of it, by term, and with flags that reduce it."""
        where, planned = counted_run(run)
        program = PROGRAM * 1e9 if where.device.name == CPU else 0.0
        terms = {"the program": program, **planned.memory}
        listed = ", ".join(f"{name} {screen.gib(size)}" for name, size in terms.items() if size > 0)
        # The free memory is useless now that it is exhausted.
        available = "" if program else f" of {screen.gib(where.capacity)} available"
        lines = [
            f"The planner estimates {screen.gib(planned.peak + program)}{available} for samples of --max_length "
            f"{run.config.data.max_length}: {listed}."
        ]
        if peak > 1.1 * (planned.peak + program):
            above = screen.gib(peak - planned.peak - program)
            lines.append(f"The process used {above} more than estimated.")
        for typed, changed in _lighter(run.config):
            less = screen.gib(counted_run(run, config=changed)[1].peak + program)
            lines.append(f"With {typed}: {less}")
        return "\n".join(lines)


def _lighter(config: Config) -> Iterator[tuple[str, Config]]:
    """Yield flags that reduce memory, and the configuration with each."""
    train = config.train
    rows = train.micro_batch * train.accumulation
    changes: list[tuple[str, dict[str, Any]]] = []
    if train.micro_batch > 1:
        half = train.micro_batch // 2
        less = {"micro_batch": half, "accumulation": -(-rows // half)}
        changes.append((f"--per_device_train_batch_size {half}", less))
    if not train.gradient_checkpointing:
        changes.append(("--gradient_checkpointing true", {"gradient_checkpointing": True}))
    for typed, changed in changes:
        yield typed, config.changed(train=changed)


def simplest(fitting: Sequence[Candidate]) -> Candidate:
    """Return the plan that cuts least among those whose times do not tell them apart, of which the first is fastest."""
    near = [plan for plan in fitting if plan.time.total <= (1 + _ALIKE) * fitting[0].time.total]
    return min(near, key=lambda plan: (len(plan.layout.named()), plan.recompute, plan.backend.name != "torch"))


def _without_plan(args: Sequence[str]) -> Iterator[str]:
    """Yield the flags of a run but for those of backend, layout and micro-batch."""
    dropping = False
    for arg in args:
        if arg.startswith("--"):
            name = arg.partition("=")[0][2:].replace("-", "_")
            dropping = name in _OF_PLANS or name.startswith(("parallel.", "backend."))
        if not dropping:
            yield arg


def _model(args: Sequence[str]) -> tuple[str, list[str]]:
    """Return the model among the flags of a run, and the other flags."""
    others = list(args)
    for index, arg in enumerate(args):
        name, _, value = arg.partition("=")
        if name in _MODEL:
            model = value or (args[index + 1] if index + 1 < len(args) else "")
            del others[index : index + (1 if value else 2)]
            return model, others
    raise UsageError("No model is configured.", hint="Pass --model FOLDER.")

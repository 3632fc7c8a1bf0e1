"""Output of `swift plan` for the terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import log
from shlex import quote

from swift_plan import ledger
from swift_plan.bars import MEMORY_ASSUMED, MEMORY_ON_CPU, Bar, Bars
from swift_plan.cluster import CPU, Cluster
from swift_plan.failures import Reliability
from swift_plan.search import Candidate, FoundPlans
from swift_plan.shape import ModelShape
from swift_plan.workload import Workload

_GIB = 2.0**30
_ENOUGH = 10
"""Number of past runs from which their errors replace the assumed one."""
_USELESS = 3.0
"""Ratio of the bar's upper end to the prediction from which a time is shown as unknown."""
_DAY = 86400


def label(candidate: Candidate) -> str:
    """Return a plan in a few words: 'megatron tp 2 pp 4 dp 2'."""
    sizes = candidate.layout.named()
    replicas, shards = sizes.pop("dp_replicate", 1), sizes.pop("dp_shard", 1)
    described = [f"{dimension} {size}" for dimension, size in sizes.items()]
    if replicas * shards > 1:
        described.append("dp " + " × ".join(str(size) for size in (replicas, shards) if size > 1))
    return " ".join([candidate.backend.variant or candidate.backend.name, *described])


def command(candidate: Candidate, args: Sequence[str], command_name: str, cluster: Cluster, workload: Workload) -> str:
    """Return the command line of a plan, with an example of a data set if the run has none."""
    data = [] if candidate.backend.config.data.train else ["--dataset", "data.jsonl"]
    typed = ["swift", command_name, *args, *data, *flags(candidate, args, workload)]
    if cluster.per_machine > 1:
        typed += ["--nproc", str(cluster.per_machine)]
    if cluster.machines > 1:
        typed += ["--nnodes", str(cluster.machines)]
    return " ".join(map(quote, typed))


def flags(candidate: Candidate, args: Sequence[str], workload: Workload) -> list[str]:
    """Return what a plan adds to the flags of a run."""
    passed = {arg.partition("=")[0].replace("-", "_") for arg in args if arg.startswith("--")}
    typed: list[str] = []
    if "__backend" not in passed:
        typed += ["--backend", candidate.backend.name]
    typed += [*candidate.backend.flags, *_parallel_flags(candidate)]
    if workload.rows_assumed:
        typed += ["--global_batch_size", str(workload.rows)]
    if not {"__per_device_train_batch_size", "__train.micro_batch"} & passed:
        typed += ["--per_device_train_batch_size", str(candidate.micro_batch)]
    if candidate.recompute and "__gradient_checkpointing" not in passed:
        typed += ["--gradient_checkpointing", "true"]
    return typed


def _parallel_flags(candidate: Candidate) -> Iterator[str]:
    """Yield the flags of the layout; what they leave open is taken up by `dp_shard`."""
    for name, value in candidate.parallel.items():
        if name != "dp_shard" and value not in (None, False, 1):
            yield from (f"--parallel.{name}", "true" if value is True else str(value))
    if candidate.stages:
        yield from ("--backend.stages", *map(str, candidate.stages))


def failures(reliability: Reliability, typed: Collection[str]) -> str:
    """Return how often a job of so many devices fails, and which interval between checkpoints costs least."""
    assumed = {
        f"{reliability.save:g} s to save": "save_seconds",
        f"{reliability.restart:g} s to restart": "restart_seconds",
        f"{reliability.device_hours:,.0f} hours between failures of a device": "device_hours",
    }
    rest = ", ".join(f"{what} ({'given' if flag in typed else 'assumed'})" for what, flag in assumed.items())
    hours, minutes = reliability.between_failures / 3600, reliability.interval / 60
    return (
        f"Expect a failure every {hours:.3g} h. Best checkpoint interval: {minutes:.3g} min, with "
        f"{reliability.useful():.1%} of the time spent on training. Based on {rest}."
    )


def reason(best: Candidate, other: Candidate) -> str:
    """Return why a plan is slower than the best, by the term that differs most; or why it is behind at all."""
    mine, theirs = best.time.terms(), other.time.terms()
    more = {name: theirs.get(name, 0.0) - mine.get(name, 0.0) for name in {*mine, *theirs}}
    name = max(more, key=lambda each: more[each])
    if other is best:
        return ""
    if other.time.total < 1.02 * best.time.total:
        more_memory = round((other.peak - best.peak) / _GIB, 1)
        return f"is as fast, with {f'{more_memory:+.1f} GiB' if more_memory else 'as much memory'}"
    if name == "arithmetic" and other.recompute and not best.recompute:
        name = "recomputing activations"
    return f"is slower: {name} {more[max(more, key=lambda each: more[each])]:+.3g} s"


def summary(candidate: Candidate, workload: Workload, cluster: Cluster, price: float | None) -> str:
    """Return a plan in one sentence: its layout, memory, speed and cost."""
    _, step = bars(candidate, cluster.device.name)
    row = _row(candidate, workload, cluster, price)[len(_HEADINGS) :]
    figures = dict(zip([*_SPEED, *([_COST] if price else [])], row, strict=True))
    if _is_unknown(step, cluster.device.name):
        speed = "time unknown: use --measure 5"
    else:
        speed = f"{figures['step']} per step, {figures['tokens/day']} tokens/day"
    cost = f", {_COST} {figures[_COST]}" if price else ""
    recomputed = ", recomputing activations" if candidate.recompute else ""
    return (
        f"{label(candidate)}, micro-batch {candidate.micro_batch}{recomputed}: "
        f"{candidate.peak / _GIB:.1f} of {cluster.capacity / _GIB:.1f} GiB, {speed}{cost}"
    )


def lines(found: FoundPlans, workload: Workload, cluster: Cluster, price: float | None) -> tuple[str, list[list[str]]]:
    """Return a title and the rows of a table, headings first: what fits, or else what comes nearest."""
    if found.fitting:
        headings = ["", *_HEADINGS, *_SPEED, *([_COST] if price else [])]
        rows = [
            [str(index), *_row(candidate, workload, cluster, price)] for index, candidate in enumerate(found.fitting, 1)
        ]
        return "Plans that fit, fastest first (batch: rows per device and micro-batch)", [headings, *rows]
    rows = [[*_memory(candidate), _too_much(candidate, cluster)] for candidate in found.nearest]
    return f"No plan fits into {cluster.capacity / _GIB:.1f} GiB. Nearest plans:", [[*_HEADINGS, "missing"], *rows]


_HEADINGS = ["plan", "batch", "recompute", "peak GiB"]
_SPEED = ["step", "tokens/day"]
_COST = "10⁹ tokens cost"


def _memory(candidate: Candidate) -> list[str]:
    recomputed = "yes" if candidate.recompute else "no"
    return [label(candidate), str(candidate.micro_batch), recomputed, f"{candidate.peak / _GIB:.1f}"]


def _too_much(candidate: Candidate, cluster: Cluster) -> str:
    if candidate.peak > cluster.capacity:
        return f"{(candidate.peak - cluster.capacity) / _GIB:.1f} GiB"
    return f"{(candidate.host - cluster.host_capacity) / _GIB:.0f} GiB of host memory"


def _row(candidate: Candidate, workload: Workload, cluster: Cluster, price: float | None) -> list[str]:
    tokens_a_day = workload.tokens / candidate.time.total * _DAY
    row = [*_memory(candidate), seconds(candidate.time.total), f"{tokens_a_day:.3g}"]
    if price:
        hours = cluster.devices * candidate.time.total / 3600 * 1e9 / workload.tokens
        row.append(f"{hours * price:,.0f} ({hours:,.0f} h)")
    return row


def nearest(found: FoundPlans, cluster: Cluster) -> list[str]:
    """Return the plans that come nearest to fitting, a line each."""
    return [f"{label(each)}: {_too_much(each, cluster)} missing" for each in found.nearest]


def gib(size: float) -> str:
    """Return a size as people read it."""
    return f"{size / _GIB:.1f} GiB"


def next_best(found: FoundPlans) -> str | None:
    """Return why the plan after the first is behind it; None where there is no other one."""
    if len(found.fitting) < 2:
        return None
    best = found.fitting[0]
    other = next((each for each in found.fitting[1:] if each.backend != best.backend), found.fitting[1])
    number = found.fitting.index(other) + 1
    return f"Plan {number} ({label(other)}) {reason(best, other)}"


def bars(candidate: Candidate, device: str) -> tuple[Bar, Bar]:
    """Return the bounds of a plan's peak and of its step, from the errors of past predictions."""
    past = list(ledger.entries(candidate.backend.name, device, level=int(candidate.basis == "traced")))
    assumed = MEMORY_ON_CPU if device == CPU else MEMORY_ASSUMED
    peak = Bars([log(1 + run.residual("bytes")) for run in past], assumed=assumed)
    step = Bars([log(1 + run.residual("seconds")) for run in past])
    return peak.around(candidate.peak), step.around(candidate.time.total)


def _is_unknown(step: Bar, device: str) -> bool:
    """Return whether a time is not worth printing: past ones were far off, or none was measured on a CPU."""
    guessed = device == CPU and step.rows == 0 and not ledger.known_speeds(device)[1]
    return guessed or step.high > _USELESS * step.value


def terms(candidate: Candidate, device: str) -> list[list[str]]:
    """Return the memory and the time of a plan by term, as rows, with the errors of past predictions."""
    peak, step = bars(candidate, device)
    counted = candidate.basis if peak.rows < _ENOUGH and device != CPU else f"{candidate.basis}, {peak}"
    rows = [["memory of the fullest process", gib(candidate.peak), counted]]
    rows += [[name, f"{size / _GIB:.2f} GiB", ""] for name, size in candidate.memory.items() if size > 0]
    if _is_unknown(step, device):
        times = (
            f"past runs took up to {step.high / step.value:.0f} times as long" if step.rows else "no run was measured"
        )
        rows.append(["one step", "unknown", f"{times}: use --measure 5"])
    else:
        rows.append(["one step", seconds(candidate.time.total), f"90 % bar {step}"])
    measured = candidate.time.measured
    rows += [
        [name, seconds(size), "messages measured" if name in measured else ""]
        for name, size in candidate.time.terms().items()
    ]
    return rows


def heading(shape: ModelShape, workload: Workload, cluster: Cluster) -> str:
    """Return what is planned, in one line."""
    active = f", {shape.active_parameters / 1e9:.3g} active" if shape.experts else ""
    total = shape.parameters
    size = f"{total / 1e9:.4g} billion" if total >= 1e9 else f"{total / 1e6:.3g} million"
    rows = f"{workload.rows} rows of {'2 × ' * (workload.segments == 2)}{workload.length} tokens per step"
    assumed = " (assumed; set --global_batch_size to change it)" if workload.rows_assumed else ""
    return f"{shape.name}: {size} parameters{active}; {cluster}; {rows}{assumed}"


def thumb(shape: ModelShape, workload: Workload) -> str:
    """Return the rules by which the articles estimate the memory, and choose a layout."""
    billions = shape.parameters / 1e9
    if workload.quantize.endswith("4"):
        size = f"QLoRA: {billions / 2 + 1:,.0f} GB (half a byte a weight, and 1 GB)"
    elif workload.adapted:
        size = f"LoRA: {2 * billions:,.0f} GB (2 bytes a weight)"
    else:
        size = f"{4 * 3 * billions:,.0f} GB over all devices (weights × 4 bytes × 3)"
    if billions < 7:
        choice = "LoRA and DDP" if workload.adapted else "DDP, or ZeRO-2"
    elif billions <= 70:
        choice = "Megatron TP 4 to 8 and PP 2 to 4; first FSDP2 for adapters, ZeRO-3 for full fine-tuning"
    else:
        choice = "ZeRO-Infinity or FSDP"
    return f"Common rule of thumb, for comparison: {size}; {choice}"


def seconds(value: float) -> str:
    """Return a time as people read it."""
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows with their columns below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )

"""Bytes that `swift plan` says processes exchange in a step, against what they are counted to exchange, by layout.

Every backend runs on two processes, or four, and torch's dispatcher counts what goes to its groups. Compared is what a
process sends: of a tensor that n processes gather or scatter (n - 1) / n of it, twice that where it is added up.
Messages of at most 4 KiB (losses, norms, lengths) are counted apart: no plan has them.
What was counted is kept in build/benchmarks/runs, so that a measurement that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.commands import RUNS, TRAINING
from benchmarks.engines import UNSAVED
from benchmarks.facts import Figure
from benchmarks.forked_runs import forked_runs
from benchmarks.inputs import EVEN_TOKENS, EXPERTS, MODEL, ensure
from benchmarks.plan_memory import IMPORTS, chats_with_long_answers
from swift.contracts import Traffic

OBJECT = 4096
"""Bytes up to which a message is of numbers about the step, not of the model's values."""
ROWS, MICRO_BATCHES, STEPS = 2, 2, 2
LORA = ("--train_type", "lora")
AGAIN = ("--gradient_checkpointing", "true")
PP = ("--backend", "megatron", "--pp", "2")


@dataclass(frozen=True)
class Layout:
    """One run."""

    name: str
    flags: tuple[str, ...]
    processes: int = 2
    model: Path = MODEL

    @property
    def file_name(self) -> str:
        """Return its name as files have it."""
        return "traffic-" + "".join(letter if letter.isalnum() else "-" for letter in self.name)

    @property
    def files(self) -> list[Path]:
        """Return the files with what each process has counted."""
        folder = RUNS / self.model.name / self.file_name
        return [folder / f"traffic-{rank}.jsonl" for rank in range(self.processes)]

    @property
    def counted(self) -> bool:
        """Whether a run that was not stopped has left them."""
        return all(file.exists() and len(file.read_text().splitlines()) == STEPS for file in self.files)

    @property
    def words(self) -> list[str]:
        """Return what is typed for it, the verb first."""
        return [
            "sft", "--model", str(self.model), "--dataset", str(chats_with_long_answers()), *TRAINING,
            "--per_device_train_batch_size", str(ROWS), "--gradient_accumulation_steps", str(MICRO_BATCHES),
            "--max_length", str(EVEN_TOKENS), *self.flags, "--max_steps", str(STEPS), *UNSAVED,
        ]  # fmt: skip


LAYOUTS = (
    Layout("torch, 2", ("--backend", "torch")),
    Layout("torch, lora, 2", ("--backend", "torch", *LORA)),
    Layout("fsdp, 2", ("--backend", "fsdp")),
    Layout("fsdp, recomputed, 2", ("--backend", "fsdp", *AGAIN)),
    Layout("fsdp, lora, 2", ("--backend", "fsdp", *LORA)),
    Layout("fsdp, reduced early, 2", ("--backend", "fsdp", "--backend.reduce", "micro_batch")),
    Layout("fsdp tp 2", ("--backend", "fsdp", "--tp", "2")),
    Layout("fsdp ulysses 2", ("--backend", "fsdp", "--parallel.ulysses", "2")),
    Layout("fsdp cp 2", ("--backend", "fsdp", "--cp", "2")),
    Layout("fsdp replicate 2 shard 2", ("--backend", "fsdp", "--parallel.dp_replicate", "2"), 4),
    Layout("zero1, 2", ("--deepspeed", "zero1")),
    Layout("zero2, 2", ("--deepspeed", "zero2")),
    Layout("zero3, 2", ("--deepspeed", "zero3")),
    Layout("zero3, 4", ("--deepspeed", "zero3"), 4),
    Layout("zero3, recomputed, 2", ("--deepspeed", "zero3", *AGAIN)),
    Layout("zero3, lora, 2", ("--deepspeed", "zero3", *LORA)),
    Layout("zero2 ulysses 2", ("--deepspeed", "zero2", "--parallel.ulysses", "2")),
    Layout("zero2 tp 2", ("--deepspeed", "zero2", "--tp", "2")),
    Layout("megatron dp 2", ("--backend", "megatron")),
    Layout("megatron dp 2, replicated", ("--backend", "megatron", "--backend.use_distributed_optimizer", "false")),
    Layout("megatron tp 2", ("--backend", "megatron", "--tp", "2")),
    Layout("megatron tp 2, recomputed", ("--backend", "megatron", "--tp", "2", *AGAIN)),
    Layout(
        "megatron tp 2, sequence parallel",
        ("--backend", "megatron", "--tp", "2", "--parallel.sequence_parallel", "true"),
    ),
    Layout("megatron pp 2", PP),
    Layout("megatron pp 2 vpp 2", (*PP, "--parallel.vpp", "2")),
    Layout("megatron cp 2", ("--backend", "megatron", "--cp", "2")),
    Layout("megatron ep 2", ("--backend", "megatron", "--ep", "2"), model=EXPERTS),
    Layout("megatron ep 2, recomputed", ("--backend", "megatron", "--ep", "2", *AGAIN), model=EXPERTS),
    Layout(
        "megatron tp 2 ep 2, 4",
        ("--backend", "megatron", "--tp", "2", "--ep", "2", "--parallel.sequence_parallel", "true"),
        4,
        EXPERTS,
    ),
    Layout("megatron dp 2 tp 2, 4", ("--backend", "megatron", "--tp", "2"), 4),
)
QUICK = ("fsdp, 2", "zero3, 2", "megatron ep 2")


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    wanted = [layout for layout in LAYOUTS if not quick or layout.name in QUICK]
    failed = dict(_run(wanted))
    figures = [Figure("runs that failed", len(failed), "", at_most=0)]
    details: dict[str, Any] = {}
    off = []
    for layout in wanted:
        if layout.name in failed:
            continue
        seen, small = counted(layout)
        planned = planned_bytes(layout)
        ratio = sum(planned.values()) / sum(seen.values())
        off.append(abs(ratio - 1))
        figures.append(Figure(f"{layout.name}: planned over counted", ratio))
        details[layout.name] = {"planned": planned, "counted": seen, f"in pieces of at most {OBJECT} bytes": small}
    near = sum(each <= 0.01 for each in off)
    figures.append(Figure(f"{len(off)} layouts: how many within 1 %", near, "", at_least=len(off)))
    figures.append(Figure(f"{len(off)} layouts: what is missed of the bytes, the most", 100 * max(off), "%", at_most=1))
    return figures, {"bytes that a process sends": details, "failed": failed, "notes": NOTES}


def _run(layouts: Sequence[Layout]) -> Iterable[tuple[str, str]]:
    """Run the layouts, engine by engine; yield those that failed."""
    for engine, imports in IMPORTS.items():
        own = [layout for layout in layouts if layout.name.startswith(engine) and not layout.counted]
        runs = []
        for layout in own:
            shutil.rmtree(RUNS / layout.model.name / layout.file_name, ignore_errors=True)
            place = ["--output_dir", str(RUNS), "--logging.run_name", layout.file_name]
            runs.append(([*layout.words, *place, "--report_to", "jsonl", "traffic-of-each"], layout.processes))
        for layout, why in zip(own, forked_runs(runs, imports, {}) if runs else (), strict=True):
            if why:
                print(f"  {layout.name} FAILED: {why}", flush=True)
                yield layout.name, why[-500:]


def counted(layout: Layout) -> tuple[dict[str, float], float]:
    """Return what a process sent in the last step on average, by operation, and what came in small pieces."""
    large: dict[str, float] = defaultdict(float)
    small = 0.0
    for file in layout.files:
        for operation, ways, size, count in json.loads(file.read_text().splitlines()[-1]):
            bytes_sent = Traffic("", operation, size, ways).sent * count / layout.processes
            if size > OBJECT:
                large[operation] += bytes_sent
            else:
                small += bytes_sent
    return dict(large), small


def planned_bytes(layout: Layout) -> dict[str, float]:
    """Return what a process is planned to send in a step, by operation."""
    from swift.config.parse import parse
    from swift.planning import PlannedBackend
    from swift.plugins.load import load_backend
    from swift_plan.counted import CountedPlan
    from swift_plan.known import config_of
    from swift_plan.shape import shape_of
    from swift_plan.workload import Workload

    parsed = parse(layout.words[1:], layout.words[0])
    backend = PlannedBackend(load_backend(parsed.config.backend.name), "", (), parsed)
    config = config_of(str(layout.model))
    sizes = backend.layout(backend.run({}, layout.processes))
    rows = ROWS * MICRO_BATCHES * sizes.data
    workload = Workload.of(backend, processes=layout.processes, on_cpu=True)
    workload = replace(workload, rows=rows, length=EVEN_TOKENS, rows_assumed=False)
    cut = {"dp_replicate": sizes.replicate, "dp_shard": sizes.shard, "pp": sizes.pp, "vpp": sizes.vpp, "cp": sizes.cp}
    cut["sequence_parallel"] = sizes.sequence_parallel
    cut |= {"ulysses": sizes.ulysses, "tp": sizes.tp, "ep": sizes.ep, "etp": sizes.etp}
    plan = CountedPlan.of(
        backend, shape_of(config, layout.model.name), workload, cut, ROWS,
        recompute=parsed.config.train.gradient_checkpointing,
    )  # fmt: skip
    found: dict[str, float] = defaultdict(float)
    for message in plan.messages():
        # A plan has what a stage within the pipeline sends, and the stages at its ends send one way.
        of_all = 1 - 1 / (sizes.pp * sizes.vpp) if message.operation == "send" and message.name == "pipeline" else 1.0
        found[message.operation] += message.sent * of_all
    return {operation: size for operation, size in found.items() if size}


NOTES = (
    "Of a pipeline the mean of its processes is compared; a plan has what a stage within it sends.",
    "ZeRO 3: matrices of fewer than 100,000 values stay whole and are gathered once a step, which no plan has: the "
    "attention of the model here is of such, that of models of a few billion is not. Adapters are.",
    "Megatron's tensor parallel: a plan has a gradient of the head for all tokens, the run for those that are learned.",
    "Context parallel on the CPU gathers keys and values, as swift's own does everywhere; a plan for GPUs has "
    "Transformer Engine's ring in the place of it, which nothing here can count.",
)

"""What `swift plan` counts and traces of a run's memory, against what its processes are seen to take, on the CPU.

What a backend's program takes for itself once it trains is seen with a model of 5M parameters, and belongs to no plan.
What was measured is kept in build/benchmarks/plan-memory, so that a measurement that was stopped goes on where it was;
remove that folder to begin anew. Plans are made each time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import RUNS, TRAINING
from benchmarks.engines import TRIMMED, UNSAVED, most
from benchmarks.facts import Figure
from benchmarks.forked_runs import forked_runs
from benchmarks.inputs import EVEN, EVEN_TOKENS, MIDDLE, MODEL, WORK, ensure

WAYS = {
    "torch": ("--backend", "torch"),
    "fsdp": ("--backend", "fsdp"),
    "zero1": ("--deepspeed", "zero1"),
    "zero2": ("--deepspeed", "zero2"),
    "zero3": ("--deepspeed", "zero3"),
    "megatron": ("--backend", "megatron"),
    "megatron tp 2": ("--backend", "megatron", "--tp", "2"),
    "megatron pp 2": ("--backend", "megatron", "--pp", "2"),
}
EVERYWHERE = ("torch", "fsdp", "zero2", "megatron")
"""Run with one, two and four processes; the other ways with two."""
TUNERS = {
    "full": ("--train_type", "full"),
    "lora": ("--train_type", "lora"),
    "dpo": ("--train_type", "full", "--rlhf_type", "dpo"),
}
RECOMPUTED = {"": (), ", recomputed": ("--gradient_checkpointing", "true")}
STEPS = 3
"""Of each run: all state is there from the first update on, but reducers make their buckets anew after the first step,
whose pages are there from the second backward pass on."""
TEXTS = {1: 4, 2: 4, 4: 2}
"""Of each micro-batch, by the number of processes; all with the same number of tokens."""
PAIRS = 16
"""Rows of preferences."""
IMPORTS = {
    "torch": (),
    "fsdp": ("swift_backend_fsdp.plugin",),
    "zero": ("deepspeed", "swift_backend_deepspeed.plugin"),
    "megatron": ("swift_backend_megatron.plugin", "swift_backend_megatron.cpu:prepare"),
}
"""What runs of an engine import, besides what all do."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    name: str
    processes: int
    flags: tuple[str, ...]
    model: Path = MIDDLE

    @property
    def way(self) -> str:
        """Return the engine as it is set up."""
        return self.name.partition(",")[0]

    @property
    def pairs(self) -> bool:
        """Whether its rows are two texts each."""
        return "dpo" in self.name

    @property
    def micro_batch(self) -> int:
        """Return the rows of a micro-batch: as many texts either way."""
        return self.texts // 2 if self.pairs else self.texts

    @property
    def texts(self) -> int:
        """Return the texts of a micro-batch."""
        return TEXTS[self.processes]

    @property
    def file_name(self) -> str:
        """Return its name as files have it."""
        return f"{self.model.name}-{self.name.replace(', ', '-').replace(' ', '')}"

    @property
    def words(self) -> list[str]:
        """Return what is typed for it, the verb first."""
        data = _pairs() if self.pairs else chats_with_long_answers()
        return [
            "rlhf" if self.pairs else "sft", "--model", str(self.model), "--dataset", str(data), *TRAINING,
            "--per_device_train_batch_size", str(self.micro_batch), "--max_length", str(EVEN_TOKENS), *self.flags,
            "--max_steps", str(STEPS), *UNSAVED,
        ]  # fmt: skip

    @property
    def maps_weights(self) -> bool:
        """Whether its weights are pages of a file."""
        # Several processes receive them from the first.
        return self.processes == 1 and self.name.startswith(("torch, lora", "zero1, lora", "zero2, lora"))

    @property
    def states(self) -> Sequence[str]:
        """Return which terms of a plan are there between two steps."""
        keeps = self.name.startswith(("megatron", "zero3")) or (self.name.startswith("torch") and self.processes > 1)
        return ("weights", "fp32 weights", "optimizer", *(["gradients"] if keeps else []))


def cells(quick: bool) -> Iterator[Cell]:
    """Yield the combinations for every engine, and with two processes also for its other ways; or a few of them."""
    for count in (2,) if quick else (1, 2, 4):
        for way, flags in WAYS.items():
            if count != 2 and way not in EVERYWHERE:
                continue
            for tuner, tuned in TUNERS.items():
                for recomputed, switched in RECOMPUTED.items():
                    if quick and (tuner, recomputed) not in (("full", ""), ("lora", ", recomputed")):
                        continue
                    yield Cell(f"{way}, {tuner}{recomputed}, {count}", count, (*flags, *tuned, *switched))


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    failed: dict[str, str] = {}
    wanted = list(cells(quick))
    small = {way: _small(way) for way in {cell.way for cell in wanted}}
    seen = _measured([*small.values(), *wanted], failed)
    own = {
        way: seen[cell.file_name]["rest"] - _planned(cell, 0).states
        for way, cell in small.items()
        if cell.file_name in seen
    }
    found: dict[str, dict[str, Any]] = {}
    for cell in wanted:
        if cell.file_name in seen and cell.way in own:
            found[cell.name] = _compared(cell, seen[cell.file_name], own[cell.way])
    figures = [
        Figure("runs that were compared", len(found), ""),
        Figure("runs that failed", len(failed), "", at_most=0),
    ]
    for level, at_most in (("traced", (3.0, 8.0)), ("counted", (None, None))):
        errors = [abs(each[level]["error"]) for each in found.values() if level in each]
        said = f"peak in training, {level}"
        figures += [
            Figure(f"{said}: median of what is missed", 100 * median(errors), "%", at_most=at_most[0]),
            Figure(f"{said}: 95th percentile of what is missed", 100 * ninety_five(errors), "%", at_most=at_most[1]),
        ]
    states = [abs(each["states_error"]) for each in found.values()]
    figures += [
        Figure("weights and moments: median of what is missed", 100 * median(states), "%", at_most=1.5),
        Figure("weights and moments: 95th percentile", 100 * ninety_five(states), "%"),
    ]
    for engine in IMPORTS:
        errors = [each["traced"]["error"] for name, each in found.items() if name.startswith(engine)]
        if errors:
            spread = f"{len(errors)} runs of {engine}, peak traced: lowest and highest error"
            figures += [
                Figure(f"{spread} ({each})", 100 * each_error, "%")
                for each, each_error in (("low", min(errors)), ("high", max(errors)))
            ]
    return figures, {"taken by the program itself, MiB": own, "runs": found, "failed": failed}


def ninety_five(errors: Sequence[float]) -> float:
    """Return the error that one in twenty exceeds."""
    return sorted(errors)[min(len(errors) - 1, int(0.95 * len(errors)))]


def _small(way: str) -> Cell:
    """Return a run of the same engine with so small a model that what is seen is the program's own."""
    count = 1 if way == "torch" else 2
    return Cell(f"{way}, full, {count}", count, (*WAYS[way], *TUNERS["full"]), MODEL)


def _measured(wanted: Sequence[Cell], failed: dict[str, str]) -> dict[str, dict[str, float]]:
    """Return MiB of the process with the most, by the cell's file name; what is not known yet is run."""
    folder = WORK / "plan-memory"
    folder.mkdir(parents=True, exist_ok=True)
    for engine, imports in IMPORTS.items():
        missing = [
            cell for cell in wanted
            if cell.name.startswith(engine) and not (folder / f"{cell.file_name}.json").exists()
        ]  # fmt: skip
        runs = []
        for cell in missing:
            shutil.rmtree(RUNS / cell.model.name / cell.file_name, ignore_errors=True)
            place = ["--output_dir", str(RUNS), "--logging.run_name", cell.file_name]
            runs.append(([*cell.words, *place, "--report_to", "jsonl", "memory-of-each"], cell.processes))
        for cell, why in zip(missing, forked_runs(runs, imports, TRIMMED) if runs else (), strict=True):
            if why:
                failed[cell.name] = why[-500:]
                print(f"  {cell.file_name} FAILED: {why}", flush=True)
                continue
            seen = most(RUNS / cell.model.name / cell.file_name)
            beside = folder / f"{cell.file_name}.new"
            beside.write_text(json.dumps(seen))
            beside.replace(folder / f"{cell.file_name}.json")
            print(f"  {cell.file_name}: {json.dumps(seen)}", flush=True)
    files = {cell.file_name: folder / f"{cell.file_name}.json" for cell in wanted}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


@dataclass(frozen=True)
class _Planned:
    """MiB of a plan."""

    peak: float
    states: float
    terms: dict[str, float]
    basis: str


_TRACES: dict[tuple[str, str, str], Any] = {}


def _planned(cell: Cell, level: int) -> _Planned:
    """Return what is counted of a run, or traced."""
    from swift.config.parse import parse
    from swift.planning import PlannedBackend
    from swift.plugins.load import load_backend
    from swift_plan.known import config_of
    from swift_plan.machine import this_machine
    from swift_plan.search import counted
    from swift_plan.shape import shape_of
    from swift_plan.timing import Timing

    parsed = parse(cell.words[1:], cell.words[0])
    backend = PlannedBackend(load_backend(parsed.config.backend.name), "", (), parsed)
    config, where = config_of(str(cell.model)), this_machine(cell.processes, 1)
    trace = None
    if level:
        from swift_plan.tracing import Trace

        # Of whole layers, whatever the layout: one for all runs of a backend with these flags.
        key = (parsed.config.backend.name, parsed.config.tuner.kind, str(cell.model))
        if key not in _TRACES:
            _TRACES[key] = Trace.begun(backend, config, length=EVEN_TOKENS, compute_bytes=4.0, on_cpu=True)
        trace = _TRACES[key]
    data = backend.layout(backend.run({}, cell.processes)).data
    plan = counted(
        backend, shape_of(config, cell.model.name), config, where, Timing(where),
        tokens=cell.texts * EVEN_TOKENS * data, compute_bytes=4.0, trace=trace,
    )  # fmt: skip
    # Frozen weights of plain torch are pages of the file, which the kernel keeps for everybody.
    mapped = (cell.model / "model.safetensors").stat().st_size / 2**20 if cell.maps_weights else 0.0
    terms = {name: size / 2**20 for name, size in plan.memory.items()}
    states = sum(terms.get(name, 0.0) for name in cell.states) - mapped
    return _Planned(sum(terms.values()) - mapped, states, terms, plan.basis)


def _compared(cell: Cell, seen: dict[str, float], own: float) -> dict[str, Any]:
    """Return what was planned of one run beside what was measured, in MiB."""
    found: dict[str, Any] = {"peak": seen["training"], "between steps": seen["rest"]}
    for level, name in enumerate(("counted", "traced")):
        plan = _planned(cell, level)
        found[name] = {"peak": plan.peak + own, "error": (plan.peak + own) / seen["training"] - 1, "basis": plan.basis}
        found[name]["terms"] = {term: round(size, 1) for term, size in plan.terms.items()}
        found["states_error"] = (plan.states + own) / seen["rest"] - 1
    return found


def _long_answers() -> list[dict[str, Any]]:
    """Return chats that all have the same number of tokens, nearly all of them of answers, which are learned."""
    chats = [json.loads(line)["messages"] for line in EVEN.read_text(encoding="utf-8").splitlines()]
    return [
        {"messages": [{"role": "user", "content": short}, {"role": "assistant", "content": long}]}
        for long, short in ([each["content"] for each in chat] for chat in chats)
    ]


def chats_with_long_answers() -> Path:
    """Return a file of chats that all have the same number of tokens, nearly all of them learned."""
    return _written("even-answers.jsonl", _long_answers())


def _pairs() -> Path:
    """Return preferences, a few: the reference scores them all."""
    rows = _long_answers()[:PAIRS]
    others = [*rows[1:], rows[0]]
    pairs = (
        {**row, "rejected_response": other["messages"][-1]["content"]} for row, other in zip(rows, others, strict=True)
    )
    return _written("even-pairs.jsonl", pairs)


def _written(name: str, rows: Iterable[dict[str, Any]]) -> Path:
    file = WORK / name
    if not file.exists():
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file

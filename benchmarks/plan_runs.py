"""Compare `swift plan` with runs on the CPU: memory, messages, and extrapolation from few blocks.

Measurements are stored in build/benchmarks, so an interrupted command continues; remove the folder to start over. Plans
are computed each time.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import TRAINING, UNSAVED, kept, swift_run, training_argv
from benchmarks.engines import TRIMMED, most
from benchmarks.facts import Figure, read_lines, write_lines
from benchmarks.inputs import EVEN, EVEN_TOKENS, EXPERTS, MIDDLE, MODEL, WORK, ensure
from benchmarks.peer import ONE_THREAD
from swift.contracts import Traffic
from swift_plan.measuring import BLOCKS, extrapolated
from swift_plan.trials import ShortRun, ShortRuns
from swift_plan.watching import BEFORE

FULL, LORA = ("--train_type", "full"), ("--train_type", "lora")
AGAIN = ("--gradient_checkpointing", "true")
TP, PP = ("--tp", "2"), ("--pp", "2")
TORCH, FSDP, MEGATRON = (("--backend", name) for name in ("torch", "fsdp", "megatron"))
ZERO1, ZERO2, ZERO3 = (("--deepspeed", f"zero{stage}") for stage in (1, 2, 3))
WAYS = {
    **{"torch": TORCH, "fsdp": FSDP, "zero1": ZERO1, "zero2": ZERO2, "zero3": ZERO3},
    **{"megatron": MEGATRON, "megatron tp 2": (*MEGATRON, *TP), "megatron pp 2": (*MEGATRON, *PP)},
}
ENGINES = ("torch", "fsdp", "zero", "megatron")
EVERYWHERE = ("torch", "fsdp", "zero2", "megatron")
"""Run with one, two and four processes; the other ways with two."""
TUNERS = {"full": FULL, "lora": LORA, "dpo": (*FULL, "--rlhf_type", "dpo")}
RECOMPUTED = {"": (), ", recomputed": AGAIN}
STEPS = 3
"""Of each run: all state is there from the first update on, but reducers make their buckets anew after the first step,
whose pages are there from the second backward pass on."""
ROWS = {1: 4, 2: 4, 4: 2}
"""Sequences of each micro-batch, by the number of processes; all with the same number of tokens."""
PAIRS = 16
OBJECT = 4096
"""Bytes up to which a message is of numbers about the step, not of the model's values."""
TRAFFIC_ROWS, MICRO_BATCHES, TRAFFIC_STEPS = 2, 2, 2
LAYERS, BLOCK_ROWS, LENGTH = 8, 2, 128

Result = tuple[list[Figure], dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    """One run."""

    name: str
    flags: tuple[str, ...]
    processes: int = 2
    model: Path = MIDDLE

    @property
    def way(self) -> str:
        return self.name.partition(",")[0]

    @property
    def file_name(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in f"{self.model.name}-{self.name}")

    @property
    def pairs(self) -> bool:
        return "dpo" in self.name

    @property
    def command(self) -> str:
        return "rlhf" if self.pairs else "sft"

    @property
    def data(self) -> Path:
        return _pairs() if self.pairs else _written("even-answers.jsonl", _long_responses())

    def taken(self, folder: Path, observer: str, variables: Mapping[str, str], read: Callable[[Path], Any]) -> Any:
        """Return what was measured of it before, or run it and read its folder; `None` where it fails."""

        def make() -> Any:
            run = swift_run(
                f"{folder.name}-{self.file_name}", *self.flags, "--nproc", str(self.processes), *UNSAVED,
                observers=[observer], reports=("jsonl",), model=self.model, data=self.data,
                variables={**ONE_THREAD, **variables}, command=self.command,
            )  # fmt: skip
            print(f"  {self.name}: done", flush=True)
            return read(run)

        try:
            return kept(folder / f"{self.file_name}.json", make)
        except SystemExit as failure:
            print(f"  {self.name} FAILED: {failure}", flush=True)
            return None

    def planned(self) -> tuple[Any, Any, Any]:
        """Return the backend as a plan sees it, what was parsed, and the model's configuration."""
        from swift.parsing import parse
        from swift.planning import PlannedBackend
        from swift.plugins.load import load_backend
        from swift_plan.shape import config_of

        parsed = parse(training_argv(self.model, self.data, *self.flags, *UNSAVED), self.command)
        backend = PlannedBackend(load_backend(parsed.config.backend.name), "", (), parsed)
        return backend, parsed.config, config_of(str(self.model))


def memory(quick: bool) -> Result:
    """Compare memory: what a plan counts and traces, with what processes take.

    What a backend's program takes for itself once it trains is seen with a model of 5M parameters, and belongs to no
    plan.
    """
    ensure()
    cells = list(_memory_cells(quick))
    small = {way: _memory_cell(way, "full", "", 1 if way == "torch" else 2, MODEL) for way in WAYS}
    small = {way: small[way] for way in {cell.way for cell in cells}}
    seen = {
        (cell.name, cell.model): cell.taken(WORK / "plan-memory", "memory-of-each", TRIMMED, most)
        for cell in (*small.values(), *cells)
    }
    failed = [name for (name, _), found in seen.items() if found is None]
    own = {
        way: seen[cell.name, MODEL]["rest"] - _counted(cell, traced=False).states
        for way, cell in small.items()
        if seen[cell.name, MODEL]
    }
    found = {
        cell.name: _memory_compared(cell, seen[cell.name, MIDDLE], own[cell.way])
        for cell in cells
        if seen[cell.name, MIDDLE] and cell.way in own
    }
    figures = [
        Figure("runs that were compared", len(found), ""),
        Figure("runs that failed", len(failed), "", at_most=0),
    ]
    for level, goals in (("traced", (3.0, 8.0)), ("counted", (None, None))):
        errors = [abs(each[level]["error"]) for each in found.values() if level in each]
        figures += _missed(f"peak in training, {level}: ", errors, *goals)
    figures += _missed("weights and moments: ", [abs(each["states_error"]) for each in found.values()], 1.5)
    for engine in ENGINES:
        errors = [each["traced"]["error"] for name, each in found.items() if name.startswith(engine)]
        figures += _spread(f"{len(errors)} runs of {engine}, peak traced: lowest and highest error", errors)
    return figures, {"taken by the program itself, MiB": own, "runs": found, "failed": failed}


def _missed(what: str, errors: Sequence[float], half: float | None, most_of: float | None = None) -> list[Figure]:
    return [
        Figure(f"{what}median of what is missed", 100 * median(errors), "%", at_most=half),
        Figure(f"{what}95th percentile of what is missed", 100 * _ninety_five(errors), "%", at_most=most_of),
    ]


def _spread(what: str, errors: Sequence[float]) -> list[Figure]:
    ends = (("low", min(errors)), ("high", max(errors))) if errors else ()
    return [Figure(f"{what} ({end})", 100 * error, "%") for end, error in ends]


def _ninety_five(errors: Sequence[float]) -> float:
    return sorted(errors)[min(len(errors) - 1, int(0.95 * len(errors)))]


def _memory_cells(quick: bool) -> Iterator[Cell]:
    """Yield the combinations for every engine, and with two processes also for its other ways; or a few of them."""
    for count in (2,) if quick else (1, 2, 4):
        for way in WAYS if count == 2 else EVERYWHERE:
            for tuner in TUNERS:
                for recomputed in RECOMPUTED:
                    if not quick or (tuner, recomputed) in (("full", ""), ("lora", ", recomputed")):
                        yield _memory_cell(way, tuner, recomputed, count)


def _memory_cell(way: str, tuner: str, recomputed: str, count: int, model: Path = MIDDLE) -> Cell:
    rows = ROWS[count] // 2 if tuner == "dpo" else ROWS[count]  # as many sequences either way
    size = ("--per_device_train_batch_size", str(rows), "--max_length", str(EVEN_TOKENS), "--max_steps", str(STEPS))
    flags = (*WAYS[way], *TUNERS[tuner], *RECOMPUTED[recomputed], *size)
    return Cell(f"{way}, {tuner}{recomputed}, {count}", flags, count, model)


@dataclass(frozen=True)
class _Counted:
    """MiB of a plan."""

    peak: float
    states: float
    terms: dict[str, float]
    basis: str


_TRACES: dict[tuple[str, str, str], Any] = {}


def _counted(cell: Cell, *, traced: bool) -> _Counted:
    from swift_plan.machine import this_machine
    from swift_plan.search import counted
    from swift_plan.shape import shape_of
    from swift_plan.timing import Timing

    backend, settings, config = cell.planned()
    where, trace = this_machine(cell.processes, 1), None
    if traced:
        from swift_plan.tracing import Trace

        # Of whole layers, whatever the layout: one for all runs of a backend with these flags.
        key = (settings.backend.name, settings.tuner.kind, str(cell.model))
        if key not in _TRACES:
            _TRACES[key] = Trace.begun(backend, config, length=EVEN_TOKENS, compute_bytes=4.0, on_cpu=True)
        trace = _TRACES[key]
    data = backend.layout(backend.run({}, cell.processes)).data
    plan = counted(
        backend, shape_of(config, cell.model.name), config, where, Timing(where),
        tokens=ROWS[cell.processes] * EVEN_TOKENS * data, compute_bytes=4.0, trace=trace,
    )  # fmt: skip
    # Frozen weights of plain torch are pages of the file, which the kernel keeps for all processes; several processes
    # receive them from the first.
    maps = cell.processes == 1 and cell.name.startswith(("torch, lora", "zero1, lora", "zero2, lora"))
    mapped = (cell.model / "model.safetensors").stat().st_size / 2**20 if maps else 0.0
    terms = {name: size / 2**20 for name, size in plan.memory.items()}
    keeps = cell.name.startswith(("megatron", "zero3")) or (cell.name.startswith("torch") and cell.processes > 1)
    between_steps = ("weights", "fp32 weights", "optimizer", *(("gradients",) if keeps else ()))
    states = sum(terms.get(name, 0.0) for name in between_steps) - mapped
    return _Counted(sum(terms.values()) - mapped, states, terms, plan.basis)


def _memory_compared(cell: Cell, seen: dict[str, float], own: float) -> dict[str, Any]:
    """Return what was planned of one run and what was measured, in MiB."""
    found: dict[str, Any] = {"peak": seen["training"], "between steps": seen["rest"]}
    for name, traced in (("counted", False), ("traced", True)):
        plan = _counted(cell, traced=traced)
        found[name] = {"peak": plan.peak + own, "error": (plan.peak + own) / seen["training"] - 1, "basis": plan.basis}
        found[name]["terms"] = {term: round(size, 1) for term, size in plan.terms.items()}
        found["states_error"] = (plan.states + own) / seen["rest"] - 1
    return found


def _long_responses() -> list[dict[str, Any]]:
    """Return chats that all have the same number of tokens, nearly all of them of responses, which are learned."""
    chats = [line["messages"] for line in read_lines(EVEN)]
    return [
        {"messages": [{"role": "user", "content": short}, {"role": "assistant", "content": long}]}
        for long, short in ([each["content"] for each in chat] for chat in chats)
    ]


def _pairs() -> Path:
    rows = _long_responses()[:PAIRS]
    others = [*rows[1:], rows[0]]
    pairs = (
        {**row, "rejected_response": other["messages"][-1]["content"]} for row, other in zip(rows, others, strict=True)
    )
    return _written("even-pairs.jsonl", pairs)


def _written(name: str, rows: Iterable[dict[str, Any]]) -> Path:
    file = WORK / name
    return file if file.exists() else write_lines(file, rows)


# Traffic


def _layouts() -> Iterator[Cell]:
    same = ("--gradient_accumulation_steps", str(MICRO_BATCHES), "--max_steps", str(TRAFFIC_STEPS))
    same = (*same, "--per_device_train_batch_size", str(TRAFFIC_ROWS), "--max_length", str(EVEN_TOKENS))
    sequence = (*TP, "--parallel.sequence_parallel", "true")
    for name, flags in {
        **{"torch, 2": TORCH, "torch, lora, 2": (*TORCH, *LORA), "fsdp, 2": FSDP, "fsdp, lora, 2": (*FSDP, *LORA)},
        **{"fsdp, recomputed, 2": (*FSDP, *AGAIN), "fsdp tp 2": (*FSDP, *TP), "fsdp cp 2": (*FSDP, "--cp", "2")},
        "fsdp, reduced early, 2": (*FSDP, "--backend.reduce", "micro_batch"),
        "fsdp ulysses 2": (*FSDP, "--parallel.ulysses", "2"),
        "fsdp replicate 2 shard 2": (*FSDP, "--parallel.dp_replicate", "2"),
        **{"zero1, 2": ZERO1, "zero2, 2": ZERO2, "zero3, 2": ZERO3, "zero3, 4": ZERO3},
        **{"zero3, recomputed, 2": (*ZERO3, *AGAIN), "zero3, lora, 2": (*ZERO3, *LORA)},
        **{"zero2 ulysses 2": (*ZERO2, "--parallel.ulysses", "2"), "zero2 tp 2": (*ZERO2, *TP)},
        "megatron dp 2": MEGATRON,
        "megatron dp 2, replicated": (*MEGATRON, "--backend.use_distributed_optimizer", "false"),
        **{"megatron tp 2": (*MEGATRON, *TP), "megatron tp 2, recomputed": (*MEGATRON, *TP, *AGAIN)},
        "megatron tp 2, sequence parallel": (*MEGATRON, *sequence),
        **{"megatron pp 2": (*MEGATRON, *PP), "megatron pp 2 vpp 2": (*MEGATRON, *PP, "--parallel.vpp", "2")},
        **{"megatron cp 2": (*MEGATRON, "--cp", "2"), "megatron ep 2": (*MEGATRON, "--ep", "2")},
        "megatron ep 2, recomputed": (*MEGATRON, "--ep", "2", *AGAIN),
        "megatron tp 2 ep 2, 4": (*MEGATRON, *sequence, "--ep", "2"),
        "megatron dp 2 tp 2, 4": (*MEGATRON, *TP),
    }.items():
        four = name.endswith(", 4") or "replicate 2 shard 2" in name
        yield Cell(name, (*flags, *same), 4 if four else 2, EXPERTS if " ep " in name else MODEL)


def traffic(quick: bool) -> Result:
    """Compare the bytes that a plan says processes exchange in a step with those that are counted, by layout.

    Torch's dispatcher counts what goes to its groups. Compared is what a process sends: of a tensor that n processes
    gather or scatter (n - 1) / n of it, twice that where it is added up. Messages of at most 4 KiB (losses, norms,
    lengths) are counted apart: no plan has them.
    """
    ensure()
    failed, off = [], []
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for cell in _layouts():
        if quick and cell.name not in ("fsdp, 2", "zero3, 2", "megatron ep 2"):
            continue
        messages = cell.taken(WORK / "plan-traffic", "traffic-of-each", {}, _last_steps)
        if messages is None:
            failed.append(cell.name)
            continue
        seen, small = _bytes_sent(messages)
        planned = _planned_bytes(cell)
        ratio = sum(planned.values()) / sum(seen.values())
        off.append(abs(ratio - 1))
        figures.append(Figure(f"{cell.name}: planned over counted", ratio))
        details[cell.name] = {"planned": planned, "counted": seen, f"in pieces of at most {OBJECT} bytes": small}
    near = sum(each <= 0.01 for each in off)
    figures = [
        Figure("runs that failed", len(failed), "", at_most=0),
        *figures,
        Figure(f"{len(off)} layouts: how many within 1 %", near, "", at_least=len(off)),
        Figure(f"{len(off)} layouts: what is missed of the bytes, the most", 100 * max(off), "%", at_most=1),
    ]
    return figures, {"bytes that a process sends": details, "failed": failed, "notes": TRAFFIC_NOTES}


def _last_steps(run: Path) -> list[Any]:
    return [read_lines(file)[-1] for file in sorted(run.glob("traffic-*.jsonl"))]


def _bytes_sent(processes: Sequence[Any]) -> tuple[dict[str, float], float]:
    """Return what a process sent on average, by operation, and what came in small pieces."""
    large: dict[str, float] = defaultdict(float)
    small = 0.0
    for messages in processes:
        for operation, ways, size, count in messages:
            bytes_sent = Traffic("", operation, size, ways).sent * count / len(processes)
            if size > OBJECT:
                large[operation] += bytes_sent
            else:
                small += bytes_sent
    return dict(large), small


def _planned_bytes(cell: Cell) -> dict[str, float]:
    """Return what a process is planned to send in a step, by operation."""
    from benchmarks.counted_plan import CountedPlan
    from swift_plan.shape import shape_of
    from swift_plan.workload import Workload

    backend, settings, config = cell.planned()
    sizes = backend.layout(backend.run({}, cell.processes))
    workload = Workload.of(backend, processes=cell.processes, on_cpu=True)
    rows = TRAFFIC_ROWS * MICRO_BATCHES * sizes.data
    workload = replace(workload, rows=rows, length=EVEN_TOKENS, rows_assumed=False)
    names = ("pp", "vpp", "cp", "sequence_parallel", "ulysses", "tp", "ep", "etp")
    cut = {"dp_replicate": sizes.replicate, "dp_shard": sizes.shard, **{name: getattr(sizes, name) for name in names}}
    plan = CountedPlan.of(
        backend, shape_of(config, cell.model.name), workload, cut, TRAFFIC_ROWS,
        recompute=settings.train.gradient_checkpointing,
    )  # fmt: skip
    found: dict[str, float] = defaultdict(float)
    for message in plan.messages():
        # A plan has what a stage within the pipeline sends, and the stages at its ends send one way.
        of_all = 1 - 1 / (sizes.pp * sizes.vpp) if message.operation == "send" and message.name == "pipeline" else 1.0
        found[message.operation] += message.sent * of_all
    return {operation: size for operation, size in found.items() if size}


TRAFFIC_NOTES = (
    "Of a pipeline the mean of its processes is compared; a plan has what a stage within it sends.",
    "ZeRO 3: matrices of fewer than 100,000 values stay whole and are gathered once a step, which no plan has: the "
    "attention of the model here is of such, that of models of a few billion is not. Adapters are.",
    "Megatron's tensor parallel: a plan has a gradient of the head for all tokens, the run for those that are learned.",
    "Context parallel on the CPU gathers keys and values, as swift's own does everywhere; a plan for GPUs has "
    "Transformer Engine's ring instead of it, which nothing here can count.",
)


# Few blocks


def blocks(quick: bool) -> Result:
    """Compare what level 2 says of a run from runs of two blocks and of four with the run of all eight blocks.

    Times are CPU seconds of all processes for a step, which other work on the machine disturbs least; of three steps
    the least counts. Memory is that of the process with the most, all of it, in training.
    """
    ensure()
    loads = [os.getloadavg()[0]]
    failed: dict[str, str] = {}
    found = {name: _blocks_compared(runs) for name, runs in _few_and_all(quick, failed)}
    loads.append(os.getloadavg()[0])
    errors = {what: [abs(each[what]) for each in found.values()] for what in ("memory", "beyond", "cpu")}
    figures = [
        Figure("runs that were compared", len(found), ""),
        Figure("runs that failed", len(failed), "", at_most=0),
        *_missed("peak: ", errors["memory"], 2, 5),
        *_missed("peak beyond what the program has without a model: ", errors["beyond"], None),
        *_missed("CPU time of a step: ", errors["cpu"], 8),
    ]
    for way in ("torch", "fsdp", "zero2", "zero3", "megatron"):
        own = [each["memory"] for name, each in found.items() if name.startswith(f"{way},")]
        figures += _spread(f"{len(own)} runs of {way}, peak: lowest and highest error", own)
    note = (
        f"Before and after, {loads[0]:.1f} and {loads[1]:.1f} processes on average wanted the machine's "
        f"{os.cpu_count()} cores: beyond what is measured, those are other processes, which make CPU time longer, too."
    )
    return figures, {"runs": found, "failed": failed, "notes": [note]}


def _few_and_all(quick: bool, failed: dict[str, str]) -> Iterator[tuple[str, dict[int, ShortRun]]]:
    """Yield the runs of each combination by their blocks; what is not known yet is run."""
    combinations = [
        (way, tuner, recomputed, count)
        for count, ways in ((2, ("torch", "fsdp", "zero2", "zero3", "megatron")), (1, EVERYWHERE))
        for way in (ways if not quick else ("torch", "fsdp") if count == 2 else ())
        for tuner in (("full",) if quick else ("full", "lora"))
        for recomputed in RECOMPUTED
    ]
    folder = WORK / "plan-blocks"
    with ShortRuns.begun("sft", str(MIDDLE), []) as trials:
        for way, tuner, recomputed, count in combinations:
            name = f"{way}, {tuner}{recomputed}, {count}"
            flags = [
                *WAYS[way], *TRAINING, *TUNERS[tuner], *RECOMPUTED[recomputed], "--nproc", str(count),
                "--backend.cpu_threads", "1", "--per_device_train_batch_size", str(BLOCK_ROWS),
                "--max_length", str(LENGTH), "--global_batch_size", str(BLOCK_ROWS * count),
            ]  # fmt: skip
            runs = {}
            for number in (*BLOCKS, LAYERS):
                file = folder / f"{name}-{number}.json".replace(", ", "-").replace(" ", "")
                run = partial(trials.run, flags, rows=BLOCK_ROWS * count, length=LENGTH, blocks=number)
                try:
                    runs[number] = ShortRun(**kept(file, partial(_made, run)))
                except SystemExit as failure:
                    failed[file.stem] = str(failure)
            if len(runs) == len(BLOCKS) + 1:
                yield name, runs


def _made(run: Callable[[], ShortRun]) -> dict[str, Any]:
    seen = run()
    print(f"  {seen.failure or f'{seen.cpu_seconds:.3f} s a step'}", flush=True)
    if seen.failure:
        raise SystemExit(seen.failure)  # which is tried anew next time
    return asdict(seen)


def _blocks_compared(runs: Mapping[int, ShortRun]) -> dict[str, Any]:
    """Return how far the prediction of a run is from what it took, as parts of that, and both in MiB and seconds."""
    whole = runs[LAYERS]
    from_few = extrapolated({number: runs[number] for number in BLOCKS}, LAYERS)
    program = whole.peaks[BEFORE]
    return {
        "memory": from_few.peak / whole.peak - 1,
        "beyond": (from_few.peak - program) / (whole.peak - program) - 1,
        "cpu": from_few.cpu_seconds / whole.cpu_seconds - 1,
        "said": {"cpu seconds": from_few.cpu_seconds, **_mebibytes(from_few)},
        "measured": {
            "all" if number == LAYERS else str(number): {
                "cpu seconds": run.cpu_seconds, "seconds": run.seconds, **_mebibytes(run),
            }
            for number, run in runs.items()
        },
    }  # fmt: skip


def _mebibytes(run: ShortRun) -> dict[str, float]:
    return {phase: round(size / 2**20, 1) for phase, size in run.peaks.items()}

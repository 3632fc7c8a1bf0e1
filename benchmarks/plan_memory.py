"""What `swift plan` counts and traces of a run's memory, against what its processes are seen to take, on the CPU.

Each run's result is kept in build/benchmarks/plan-memory, so that a measurement that was stopped goes on where it was;
remove that folder to begin anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import PADDED, swift_run
from benchmarks.engines import MEMORY_STEPS, UNSAVED, most, watched
from benchmarks.facts import Figure
from benchmarks.inputs import EVEN, LARGE, WORK, ensure

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
TUNERS = {
    "full": ("--train_type", "full"),
    "lora": ("--train_type", "lora"),
    "dpo": ("--train_type", "full", "--rlhf_type", "dpo"),
}
RECOMPUTED = {"": (), ", recomputed": ("--gradient_checkpointing", "true")}
_NOT_OF_THE_MODEL = "Python, torch and transformers"
"""The term of a plan on the CPU that is there before there is a model."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    name: str
    processes: int
    flags: tuple[str, ...]

    @property
    def maps_weights(self) -> bool:
        """Whether its weights are pages of a file."""
        return self.name.startswith("torch, lora")

    @property
    def states(self) -> Sequence[str]:
        """Return which terms of a plan are there between two steps."""
        keeps = self.name.startswith("megatron") or (self.name.startswith("torch") and self.processes > 1)
        return ("weights", "fp32 weights", "optimizer", *(["gradients"] if keeps else []))


def cells(quick: bool) -> Iterator[Cell]:
    """Yield all combinations that there are, or a few of them."""
    for way, flags in WAYS.items():
        for count in (2,) if quick else (1, 2, 4):
            if way.endswith("2") and count == 1 and not way.startswith("zero"):
                continue
            for tuner, tuned in TUNERS.items():
                for recomputed, switched in RECOMPUTED.items():
                    if quick and (tuner, recomputed) not in (("full", ""), ("lora", ", recomputed")):
                        continue
                    yield Cell(f"{way}, {tuner}{recomputed}, {count}", count, (*flags, *tuned, *switched))


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    found: dict[str, dict[str, float]] = {}
    failed: dict[str, str] = {}
    for cell in cells(quick):
        try:
            found[cell.name] = _once(cell)
            print(f"  {cell.name}: {json.dumps(found[cell.name])}", flush=True)
        except SystemExit as error:
            failed[cell.name] = str(error)[-500:]
            print(f"  {cell.name} FAILED: {failed[cell.name]}", flush=True)
    figures = [
        Figure("runs that were compared", len(found), ""),
        Figure("runs that failed", len(failed), "", at_most=0),
    ]
    for level, at_most in (("traced", (3.0, 8.0)), ("counted", (None, None))):
        errors = sorted(abs(each[f"{level}_error"]) for each in found.values() if f"{level}_error" in each)
        ninety_five = errors[min(len(errors) - 1, int(0.95 * len(errors)))]
        said = f"peak in training, {level}"
        figures += [
            Figure(f"{said}: median of what is missed", 100 * median(errors), "%", at_most=at_most[0]),
            Figure(f"{said}: 95th percentile of what is missed", 100 * ninety_five, "%", at_most=at_most[1]),
        ]
    states = sorted(abs(each["states_error"]) for each in found.values() if each["states_mib"] > 200)
    figures.append(Figure("weights and moments: median of what is missed", 100 * median(states), "%", at_most=1.5))
    return figures, {"runs": found, "failed": failed}


def _once(cell: Cell) -> dict[str, float]:
    """Return what was found of a cell, now or before."""
    file = WORK / "plan-memory" / f"{cell.name.replace(', ', '-').replace(' ', '')}.json"
    if file.exists():
        known: dict[str, float] = json.loads(file.read_text())
        return known
    found = _compared(cell)
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(found))
    beside.replace(file)
    return found


def _compared(cell: Cell) -> dict[str, float]:
    """Run one cell; MiB of the process with the most, beside what was planned."""
    place = (*cell.flags, "--nproc", str(cell.processes), "--max_steps", str(MEMORY_STEPS), *UNSAVED)
    pairs = "dpo" in cell.name
    look = watched(LARGE, _pairs() if pairs else EVEN) | {"verb": "rlhf" if pairs else "sft"}
    look["observers"] = [*look["observers"], "plan"]
    # Two texts a row: as many tokens in a batch either way.
    batch = ("--per_device_train_batch_size", "4") if pairs else PADDED
    folder = swift_run(f"plan-{cell.name.replace(', ', '-').replace(' ', '')}", *batch, *place, **look)
    measured = most(folder)
    plan = json.loads((folder / "plan.json").read_text())
    # Frozen weights of plain torch are pages of the file, which the kernel keeps for everybody.
    mapped = (LARGE / "model.safetensors").stat().st_size / 2**20 if cell.maps_weights else 0.0
    found = {"peak_mib": measured["training"], "states_mib": measured["rest"]}
    for level, told in (("counted", plan["predicted"]), ("traced", plan["traced"])):
        if told.get("basis", "counted") != level:
            continue
        terms = {name: size / 2**20 for name, size in told["memory_bytes"].items() if name != _NOT_OF_THE_MODEL}
        found[f"{level}_peak_mib"] = sum(terms.values()) - mapped
        found[f"{level}_error"] = found[f"{level}_peak_mib"] / measured["training"] - 1
        if level == "counted":
            found["counted_states_mib"] = sum(terms.get(name, 0.0) for name in cell.states) - mapped
    found["states_error"] = found["counted_states_mib"] / measured["rest"] - 1 if measured["rest"] else 0.0
    return found


def _pairs() -> Path:
    """Return preferences of chats that all have the same number of tokens."""
    file = WORK / "even-pairs.jsonl"
    if not file.exists():
        chats = [json.loads(line)["messages"] for line in EVEN.read_text(encoding="utf-8").splitlines()]
        others = [*chats[1:], chats[0]]
        rows = (
            {"messages": chat, "rejected_response": other[-1]["content"]}
            for chat, other in zip(chats, others, strict=True)
        )
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file

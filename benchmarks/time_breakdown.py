"""Compare the communication part of a step with torch.profiler's, and measure the cost.

In one run of two processes three kinds of steps alternate: measured by swift, measured by torch.profiler, and not
measured. The profiler's exported trace is evaluated by independent code, which counts points of a grid. Medians over
steps are compared. The cost is the additional CPU time of a measured step.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.facts import Figure
from benchmarks.inputs import CHATS, MODEL, ensure

PROCESSES = 2
EVERY = 50
"""Steps between measurements, as `--logging.time_breakdown` is by default."""
TURNS = ("measured", "profiled", "alone")
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "torch": {"replicas": {}},
    "fsdp": {"shards": {"parallel.dp_shard": 2}, "tensor parallel": {"parallel.tp": 2}},
    "deepspeed": {"ZeRO 2": {"deepspeed": "zero2"}, "ZeRO 3": {"deepspeed": "zero3"}},
    "megatron": {
        "shards of the optimizer": {"parallel.dp_shard": 2},
        "tensor parallel": {"parallel.tp": 2},
        "pipeline": {"parallel.pp": 2},
    },
}
GRID = 1e-5
"""Seconds between two moments at which a trace is looked at."""


@dataclass
class Turns:
    """What the steps of each kind gave on one process: parts of communication, and processor seconds."""

    parts: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in TURNS})
    processor: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in TURNS})
    sums: list[float] = field(default_factory=list)
    """Of the four fractions of each measured step."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure()
    rounds = 2 if quick else 8
    details: dict[str, dict[str, float]] = {}
    for backend in LAYOUTS:
        details |= _compared(backend, rounds)
    figures = []
    for name, each in details.items():
        parts = f"{100 * each['swift']:.1f} %, torch.profiler's {100 * each['profiler']:.1f} %"
        figures.append(Figure(f"{name}: communication {parts}; apart by", each["points"], "points", at_most=5.0))
    worst = max(each["cost_percent"] for each in details.values())
    figures.append(Figure(f"cost of one step in {EVERY}, at most, of processor time", worst, "%", at_most=1.0))
    off = max(abs(100 * each["sum"] - 100) for each in details.values())
    figures.append(Figure("the four parts, from 100 %", off, "points", at_most=2.0))
    return figures, details


def _compared(backend: str, rounds: int) -> dict[str, dict[str, float]]:
    from transformers.models.qwen3 import modeling_qwen3  # noqa: F401  # once, for the processes that are forked

    from swift.train import loop  # noqa: F401  # the same
    from swift_testing.crew import run_jobs, succeeded

    layouts = LAYOUTS[backend]
    jobs = [partial(_alternate, {"backend.name": backend, **settings}, rounds) for settings in layouts.values()]
    results = run_jobs(PROCESSES, jobs)
    found = {}
    for name, each in zip(layouts, results, strict=True):
        found[f"{backend}, {name}"] = outcome = _summed(succeeded(each))
        print(f"{backend}, {name}: {outcome}", flush=True)
    return found


def _summed(each: list[Turns]) -> dict[str, float]:
    swift = median(each[0].parts["measured"])  # a mean over processes already
    profiler = median(sum(parts) / PROCESSES for parts in zip(*(one.parts["profiled"] for one in each), strict=True))
    processor = {name: median(map(sum, zip(*(one.processor[name] for one in each), strict=True))) for name in TURNS}
    return {
        "swift": swift,
        "profiler": profiler,
        "points": 100 * abs(swift - profiler),
        "sum": median(each[0].sums),
        "processor_seconds_measured": processor["measured"],
        "processor_seconds_alone": processor["alone"],
        "cost_percent": max(0.0, 100 * (processor["measured"] / processor["alone"] - 1) / EVERY),
    }


def _alternate(settings: Mapping[str, Any], rounds: int) -> Turns:
    import torch

    from swift.parsing import config_from_mapping
    from swift.train import time_breakdown
    from swift.train.loop import Loop
    from swift.train.prepare import open_job

    torch.set_num_threads(1)
    os.environ["KINETO_LOG_LEVEL"] = "99"
    time_breakdown.FIRST = len(TURNS)
    first = len(TURNS)
    with tempfile.TemporaryDirectory() as folder, time_breakdown.measured_at_any_cost():
        run = {
            "model.path": str(MODEL), "data.train": str(CHATS), "tuner.kind": "full", "train.micro_batch": 8,
            "train.max_steps": first + len(TURNS) * rounds, "train.eval_strategy": "no", "checkpoint.save_last": False,
            "checkpoint.save_strategy": "no", "logging.output": folder, "logging.report_to": "jsonl",
            "logging.steps": 1, "logging.time_breakdown": len(TURNS),
        }  # fmt: skip
        turns = Turns()
        with open_job(config_from_mapping({**run, **settings})) as job:
            loop = Loop(job)
            make_step = loop.make_step

            def taken(step: int) -> Any:
                turn = TURNS[(step + 1) % len(TURNS)]
                begin = time.process_time()
                if turn == "profiled":
                    record, part = _profiled(lambda: make_step(step), Path(folder) / f"trace-{job.comms.rank}.json")
                    turns.parts[turn].append(part)
                else:
                    record = make_step(step)
                if step >= first:
                    turns.processor[turn].append(time.process_time() - begin)
                return record

            loop.make_step = taken  # type: ignore[method-assign]  # of this object
            for record in loop.steps():
                if record.time_breakdown is not None:
                    turns.parts["measured"].append(record.time_breakdown.fractions["communication"])
                    turns.sums.append(sum(record.time_breakdown.fractions.values()))
    return turns


def _profiled(step: Callable[[], Any], path: Path) -> tuple[Any, float]:
    """Return the step's record and the part of it that torch.profiler shows to be communication alone."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        record = step()
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    spans = [each for each in events if each.get("ph") == "X" and "dur" in each]
    start = min(each["ts"] for each in spans)
    moments = np.zeros((2, int(record.seconds / GRID) + 2), dtype=bool)
    for each in spans:
        row = 0 if each["name"].startswith("gloo:") else 1 if each["name"].startswith("aten::") else None
        if row is not None:
            begin = (each["ts"] - start) * 1e-6 / GRID
            moments[row, round(begin) : round(begin + each["dur"] * 1e-6 / GRID)] = True
    waiting = moments[0] & ~moments[1]
    return record, float(waiting.sum()) * GRID / record.seconds

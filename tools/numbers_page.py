"""The page of ten numbers that stands before the benchmarks' results: docs/reference/numbers.md, by `make docs`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


class Number(NamedTuple):
    """A figure of a benchmark, and a sentence that says what it means."""

    meaning: str
    benchmark: str
    what: str
    """Its name in the benchmark's results."""


_GRPO = (
    "completions of their own lengths: tokens per second over TRL's, nothing recomputed: end to end, without padding"
)
NUMBERS = (
    Number("Loss of a run, relative difference from a hand-written torch loop", "throughput",
           "padded: largest relative difference of the loss"),
    Number("Speed of fine-tuning, compared with that loop, both padded", "throughput",
           "padded: tokens/s over the bare loop's"),
    Number("The same with packed samples", "throughput", "packed: real tokens/s over the bare padded loop's"),
    Number("Speed of fine-tuning, compared with ms-swift, both packed, nothing recomputed", "ms_swift",
           "the same, nothing recomputed by either, packed"),
    Number("Speed of GRPO from sampling to the update, compared with TRL", "grpo", _GRPO),
    Number("Speed of embedding training, compared with sentence-transformers, which pads", "embeddings",
           "tokens/s over sentence-transformers', without padding"),
    Number("LoRA on a model of 8B parameters and samples of 4,096 tokens", "gpu", "lora_4k: tokens per second"),
    Number("Its peak memory; `swift plan` expected {lora_4k: planned gib}", "gpu", "lora_4k: peak gib"),
    Number("Memory of {runs that were compared} runs, median error of `swift plan`", "plan_memory",
           "peak in training, traced: median of what is missed"),
    Number("Step time of published runs on 8 to 12,288 GPUs, mean relative error of `swift plan`", "plan_published",
           "time of 26 rows T1 to T10: mean error"),
)  # fmt: skip


def numbers_page() -> str:
    """Return the page; a benchmark that no longer has a figure is an error."""
    rows = ["| what | number | goal | measured on | command |", "|---|---:|---|---|---|"]
    for number in NUMBERS:
        result = json.loads((RESULTS / f"{number.benchmark}.json").read_text())
        figures = {each["what"]: each for each in result["figures"]}
        figure = figures[number.what]
        parts = re.split(r"[{}]", number.meaning)
        parts[1::2] = [figures[name]["figure"] for name in parts[1::2]]
        goal = figure["verdict"].removeprefix("target ").replace("<=", "≤").replace(">=", "≥")
        device = result["machine"].get("device") or f"{result['machine']['cores']} CPU cores"
        rows.append(f"| {''.join(parts)} | {figure['figure']} | {goal} | {device} | `{result['command']}` |")
    return "\n\n".join([
        "# Ten numbers",
        "<!-- Written by `make docs` from benchmarks/results. Do not edit. -->",
        "Measured by this repository's benchmarks. A number such as 1.45x is the ratio of two measurements in one run "
        "on one machine, with the same model, data and precision; above 1x, swift is faster. Goals that are missed are "
        "shown too. swift has not run on several GPUs: numbers for them are estimates of the planner.",
        "\n".join(rows),
        "[All results](../../benchmarks/results/README.md) has the other figures, and "
        "[performance](../explanation/performance.md) explains how each is measured. Two more tables are generated: "
        "[which checkpoints resume where](resume-matrix.md), and [which model types train](architectures.md).",
    ]) + "\n"  # fmt: skip

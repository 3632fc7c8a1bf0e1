"""Measure memory, CPU time and loss of every tuner with every optimizer, on 84M parameters.

Each pair is a run in a forked process, on one thread. A pair that swift refuses is recorded with the reason. Results of
pairs are stored at once in `build/benchmarks/optimizers`, so an interrupted command continues.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.commands import kept
from benchmarks.facts import Figure, MemoryWatch, read_lines
from benchmarks.inputs import CHATS, LARGE, MODEL, WORK, ensure

KEPT = WORK / "optimizers"
TUNERS = ("full", "lora", "dora", "miss", "oft", "boft", "hira", "loha", "lokr", "gralora", "vera", "ia3")
OPTIMIZERS = (
    *("adamw", "adamw_8bit", "adamw_4bit", "adafactor", "adam_mini", "galore", "q_galore", "apollo", "apollo_mini"),
    *("muon", "schedule_free", "lion", "sgd"),
)
SLOW = ("hira", "loha", "lokr", "boft")
"""Tuners that compute a factor or a summand for each weight, in each step."""
ROWS, STEPS, QUICK_STEPS = 4, 5, 3
RATES: Mapping[str, float] = {"lion": 1e-5, "sgd": 0.1, "adafactor": 1e-2, "galore": 4e-4, "q_galore": 4e-4}
"""Of full training, where it is not that of AdamW; adapters learn at ten times as much."""
ADAMW, OF_ADAPTERS = 1e-4, 10.0

Cell = dict[str, Any]


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure()
    model, steps = (MODEL, QUICK_STEPS) if quick else (LARGE, STEPS)
    folder = KEPT / f"{model.name}-{steps}"
    folder.mkdir(parents=True, exist_ok=True)
    _import_everything()
    cells: dict[str, dict[str, Cell]] = {tuner: {} for tuner in TUNERS}
    # What tells most comes first: all weights by each optimizer, then each tuner by AdamW; what takes longest is last.
    pairs = sorted(
        ((tuner, name) for tuner in TUNERS for name in OPTIMIZERS),
        key=lambda pair: (pair[0] != "full", SLOW.index(pair[0]) if pair[0] in SLOW else -1, pair[1] != "adamw"),
    )
    for tuner, name in pairs:
        run = partial(_in_own_process, partial(_train, model, tuner, name, steps))
        cells[tuner][name] = kept(folder / f"{tuner}-{name}.json", run)
        print(f"  {tuner} {name}: {cells[tuner][name]}", flush=True)
    details = {
        "model": model.name,
        "steps": steps,
        "rows_of_a_step": ROWS,
        "learning_rates": {"adamw": ADAMW, **RATES, "adapters": f"{OF_ADAPTERS} times as much"},
        "pairs": cells,
        "notes": _tables(cells, steps),
    }
    return _figures(cells), details


def _figures(cells: Mapping[str, Mapping[str, Cell]]) -> list[Figure]:
    full = cells["full"]
    return [
        Figure(f"full, {name}: {what} over AdamW's", each[key] / full["adamw"][key])
        for key, what in (("peak_mib", "peak memory"), ("cpu_s", "time of a step"))
        for name, each in full.items()
        if key in each and name != "adamw"
    ]


def _tables(cells: Mapping[str, Mapping[str, Cell]], steps: int) -> list[str]:
    """Return a table for each thing that is measured: a row for a tuner, a column for an optimizer."""
    titles = {
        "peak_mib": "Most memory in MiB beyond that of imports",
        "cpu_s": "Processor's seconds for a step",
        "loss": f"Loss of step {steps}",
    }
    return [
        "\n".join([
            f"{title}; – is refused:",
            "",
            "| | " + " | ".join(OPTIMIZERS) + " |",
            "|---|" + "---:|" * len(OPTIMIZERS),
            *(
                f"| {tuner} | " + " | ".join(_shown(row[name], key) for name in OPTIMIZERS) + " |"
                for tuner, row in cells.items()
            ),
        ])
        for key, title in titles.items()
    ]  # fmt: skip


def _shown(cell: Cell, key: str) -> str:
    if key not in cell:
        return "–"
    return f"{cell[key]:,.0f}" if key == "peak_mib" else f"{cell[key]:.2f}" if key == "cpu_s" else f"{cell[key]:.3f}"


def _in_own_process(job: Callable[[], Cell]) -> Cell:
    from swift_testing.crew import run_jobs, succeeded

    ((found,),) = (succeeded(each) for each in run_jobs(1, [job]))
    return found


def _train(model: Path, tuner: str, name: str, steps: int) -> Cell:
    from swift.errors import ConfigError
    from swift.parsing import config_from_mapping
    from swift.train import loop

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    full = tuner == "full"
    rows = read_lines(CHATS)[: steps * ROWS]
    settings = {
        "model.path": str(model), "backend.device": "cpu", "tuner.kind": "lora" if tuner == "dora" else tuner,
        **({"tuner.dora": True} if tuner == "dora" else {}), "optim.name": name,
        "optim.lr": RATES.get(name, ADAMW) * (1.0 if full else OF_ADAPTERS), "optim.schedule": "constant",
        "optim.warmup_steps": 0, "optim.weight_decay": 0.0, "train.micro_batch": ROWS, "train.max_steps": steps,
        "data.shuffle": False, "data.workers": 1, "checkpoint.save_last": False,
        "logging.output": str(KEPT / "runs"), "logging.report_to": [],
    }  # fmt: skip
    watch = MemoryWatch()
    seconds, loss = [], 0.0
    try:
        since = time.process_time()
        for record in loop.steps(config_from_mapping(settings), rows=rows):
            now = time.process_time()
            seconds.append(now - since)
            since, loss = now, record.result.loss
    except ConfigError as refusal:
        return {"refused": str(refusal)}
    watch.mark("steps")
    # The first step makes the optimizer's state, and is left out.
    return {"peak_mib": watch.end()["steps"], "cpu_s": statistics.median(seconds[1:]), "loss": loss}


def _import_everything() -> None:
    """Import once what all runs import, so that none of it counts as memory of one."""
    import bitsandbytes  # noqa: F401
    import peft  # noqa: F401
    import torch
    from transformers.models.qwen3 import modeling_qwen3  # noqa: F401

    import swift.train.loop  # noqa: F401

    torch.set_num_threads(1)

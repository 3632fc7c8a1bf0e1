"""Error bars of `swift plan`: how often they hold what was measured, of configurations that had no part in them.

Memory: the runs of `python -m benchmarks plan_memory`, out of its committed table. Time: vTrain's rows, in the folder
that VTRAIN names. Some are known, as a ledger would know them; the others are held out; and that many times over.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.facts import Figure
from benchmarks.inputs import ROOT
from benchmarks.plan_times import Row, rows
from swift_plan.bars import MEMORY_ASSUMED, Bars, crossed
from swift_plan.fit import fit
from swift_plan.search import MARGIN

MEMORY = ROOT / "benchmarks" / "results" / "plan_memory.json"
KNOWN = (20, 48)
"""Runs of which a bar of memory is made."""
KNOWN_TIMES = 60
CAPACITIES = 201
"""Sizes of a device, between half of what a run takes and twice that, for which a run is judged to fit or not."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    folder = os.environ.get("VTRAIN")
    if not folder:
        raise SystemExit("VTRAIN names no folder: it should hold vtrain_single_node.csv and vtrain_multi_node.csv.")
    runs: Mapping[str, Any] = json.loads(MEMORY.read_text(encoding="utf-8"))["details"]["runs"]
    figures: list[Figure] = []
    held: dict[str, float] = {}
    for level in ("traced", "counted"):
        errors = [-log(1 + run[level]["error"]) for run in runs.values()]
        for count in KNOWN:
            share, width = _memory(errors, count, 20 if quick else 400)
            held[f"{level}, {count}"] = share
            figures += _shown(f"memory {level}, bars from {count} runs, {len(errors) - count} others", share, width)
    every = [row for kind in ("single", "multi") for row in rows(Path(folder) / f"vtrain_{kind}_node.csv")]
    inside, widths = _times(every, 1 if quick else 6)
    figures += _shown(f"time, bars from {KNOWN_TIMES} rows, {len(every) - KNOWN_TIMES} others", fmean(inside), widths)
    both = len(runs) - KNOWN[1], len(every) - KNOWN_TIMES
    share = (both[0] * held[f"traced, {KNOWN[1]}"] + both[1] * fmean(inside)) / sum(both)
    figures += _goal(f"memory and time, {sum(both)} configurations held out in each split", share)
    figures += _fitting(runs)
    return figures, {"splits of the time": inside, "notes": NOTES}


def _shown(said: str, share: float, width: float) -> list[Figure]:
    return [*_goal(said, share), Figure(f"{said}: width to each side", 100 * (exp(width) - 1), "%")]


def _goal(said: str, share: float) -> list[Figure]:
    return [
        Figure(f"{said}: how many bars of 90 % hold", share, "", at_least=0.85),
        Figure(f"{said}: not too wide", share, "", at_most=0.95),
    ]


def _memory(errors: Sequence[float], count: int, splits: int) -> tuple[float, float]:
    """Return which part of the runs that were held out their bars hold, over many splits, and the bars' width."""
    held, widths = [], []
    for seed in range(splits):
        order = random.Random(seed).sample(list(errors), len(errors))
        bar = Bars(order[:count], assumed=MEMORY_ASSUMED).around(1.0)
        held += [log(bar.low) <= error <= log(bar.high) for error in order[count:]]
        widths.append(log(bar.high))
    return fmean(held), median(widths)


def _times(every: Sequence[Row], splits: int) -> tuple[list[float], float]:
    """Return the same of times, split by split: speeds are fitted on the known rows, and the bars made of them."""
    inside, widths = [], []
    for seed in range(splits):
        order = random.Random(500 + seed).sample(list(every), len(every))
        known, others = order[:KNOWN_TIMES], order[KNOWN_TIMES:]
        speeds, bars = fit(known), Bars(crossed(known))
        widths.append(log(bars.around(1.0).high))
        inside.append(fmean(_inside(bars, row.predict(speeds), row.seconds) for row in others))
    return inside, median(widths)


def _inside(bars: Bars, predicted: float, measured: float) -> bool:
    bar = bars.around(predicted)
    return bar.low <= measured <= bar.high


def _fitting(runs: Mapping[str, Any]) -> list[Figure]:
    """Judge every run for devices of many sizes, as a plan is judged: with a part of the memory left free."""
    figures = []
    for level in ("traced", "counted"):
        cases = [(run[level]["peak"], run["peak"]) for run in runs.values()]
        lacked = _share(cases, lambda planned, room: planned * (1 + MARGIN) <= room, lambda peak, room: peak > room)
        refused = _share(cases, lambda planned, room: planned * (1 + MARGIN) > room, lambda peak, room: peak <= room)
        figures += [
            Figure(f"memory {level}: of plans said to fit, those that lack memory", 100 * lacked, "%", at_most=1.0),
            Figure(f"memory {level}: of plans said not to fit, those that do", 100 * refused, "%", at_most=5.0),
        ]
    return figures


def _share(
    cases: Sequence[tuple[float, float]], said: Callable[[float, float], bool], wrong: Callable[[float, float], bool]
) -> float:
    """Return the part of what was said of all runs and sizes of devices that turns out wrong."""
    said_of = wrong_of = 0
    for planned, peak in cases:
        for step in range(CAPACITIES):
            room = peak * 2 ** (2 * step / (CAPACITIES - 1) - 1)
            if said(planned, room):
                said_of += 1
                wrong_of += wrong(peak, room)
    return wrong_of / said_of


NOTES = (
    "Memory: log(measured / planned) of the 96 runs on the CPU, known ones drawn by chance; the estimates were mended "
    "against the same runs, so that these bars are narrower than those of engines that nobody has looked at.",
    "Time: vTrain's rows on 2 to 512 A100, one machine and several together; bars of errors that are each of a row "
    "without a part in its own prediction.",
    "Fitting: each run is judged for 201 sizes of a device, in equal ratios from half of what it took to twice that, "
    "as `swift plan` judges: 8 % are to be left free. What is told wrong of plans that do not fit is that margin's "
    "price.",
)

"""Compare predicted with measured iteration times of GPT models on 2 to 512 A100.

The rows are those of vTrain (KAIST, MICRO 2024, github.com/VIA-Research/vTrain, MIT license): vtrain_single_node.csv
and vtrain_multi_node.csv. They are not in this repository: VTRAIN names their folder. `swift plan` counts each row with
the Megatron backend's own estimates. Speeds are fitted on a few rows, and all errors are those of other rows.
"""

from __future__ import annotations

import csv
import json
import os
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import exp, log, log1p
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.counted_plan import CountedPlan
from benchmarks.facts import Figure
from benchmarks.inputs import ROOT
from benchmarks.plan_published import gpt_shape
from swift.planning import PlannedBackend, planned_backends
from swift_plan.bars import MEMORY_ASSUMED, Bars
from swift_plan.cluster import cluster
from swift_plan.fit import UNSURE, USUAL, MeasuredStep, fit
from swift_plan.search import MARGIN
from swift_plan.timing import Speeds, Timing
from swift_plan.workload import Workload

ROWS = 20
_SMALL = 1e-4
"""Change of a speed, as a logarithm, that slopes are taken over."""
_RUN = (
    "--model", "gpt", "--backend", "megatron", "--train_type", "full",
    "--backend.use_distributed_optimizer", "false",
)  # fmt: skip


@dataclass(frozen=True)
class Row(MeasuredStep):
    """A measured iteration of vTrain's."""

    billions: float = 0.0
    gpus: int = 0
    group: tuple[str, ...] = ()
    """What a layout is chosen for: the model, the batch and the devices."""


def times(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    single, several = _measured("single"), _measured("multi")
    splits = 2 if quick else 8
    figures: list[Figure] = []
    details: dict[str, Any] = {"rows": {"one machine": len(single), "several": len(several)}, "notes": NOTES}
    for name, measured, goal in (("one machine", single, 0.08), ("64 to 512 GPUs", several, 0.06)):
        of_errors, fitted = _errors(name, measured, goal, splits)
        figures += of_errors
        details[name] = fitted
    figures += _largest(several)
    figures += _chosen(single)
    figures += _covered(single, max(2, splits // 2))
    return figures, details


def _measured(machines: str) -> list[Row]:
    folder = os.environ.get("VTRAIN")
    if not folder:
        raise SystemExit("VTRAIN is not set. Set it to the folder of vtrain_single_node.csv and vtrain_multi_node.csv.")
    (backend,), _ = planned_backends(_RUN, "pt")
    with Path(folder, f"vtrain_{machines}_node.csv").open(encoding="utf-8", newline="") as file:
        return [_row(backend, line) for line in csv.DictReader(file)]


def _row(backend: PlannedBackend, line: dict[str, str]) -> Row:
    def whole(name: str) -> int:
        return int(float(line[name]))

    hidden, heads, length = whole("hidden size"), whole("attention heads"), whole("sequence length")
    tp, micro_batch = whole("tensor parallelism"), whole("micro batch")
    shape = gpt_shape("gpt", hidden, whole("# layers"), heads, length)
    workload = Workload(whole("global batch"), length, False, 2.0, False)
    sizes = {"tp": tp, "pp": whole("pipeline parallelism"), "dp_shard": 1, "dp_replicate": whole("data parallelism")}
    counted = CountedPlan.of(backend, shape, workload, sizes, micro_batch, recompute=True)
    # Before fused attention, a layer also wrote its scores: 5 bytes for each pair of tokens and head.
    case = replace(counted, kept=10 * hidden + (24 * hidden + 5 * heads * length) / tp)
    where = cluster(f"{case.layout.world}xA100")
    described = f"tp {tp} pp {sizes['pp']} dp {sizes['dp_replicate']} b {micro_batch}"
    return Row(
        lambda speeds: case.time(Timing(where, speeds)).total,
        float(line["iteration time (ms)"]) / 1e3,
        f"{hidden}x{shape.layers}, {workload.rows} rows, {described}",
        billions=shape.parameters / 1e9,
        gpus=whole("# GPUs"),
        group=tuple(line[key] for key in ("# GPUs", "global batch", "hidden size", "# layers", "sequence length")),
    )


def _error(measured: Sequence[Row], speeds: Speeds) -> float:
    return fmean(abs(row.error(speeds)) for row in measured)


def _errors(name: str, measured: Sequence[Row], goal: float, splits: int) -> tuple[list[Figure], dict[str, Any]]:
    chosen = set(choose(measured, ROWS))
    speeds = fit([measured[index] for index in sorted(chosen)])
    others = [row for index, row in enumerate(measured) if index not in chosen]
    by_chance = []
    for seed in range(splits):
        order = random.Random(seed).sample(list(measured), len(measured))
        by_chance.append(_error(order[ROWS:], fit(order[:ROWS])))
    everything = fit(measured[:: max(1, len(measured) // 100)])
    title = f"{name}: mean error"
    by_few = f"of the others, fitted on {ROWS} rows"
    figures = [
        Figure(f"{title}, assumed speeds", _error(measured, Speeds()), ""),
        Figure(f"{title} {by_few} that the planner chose", _error(others, speeds), "", at_most=goal),
        Figure(f"{title} {by_few} by chance, {splits} splits", fmean(by_chance), "", at_most=goal),
        Figure(f"{title} where all rows were fitted", _error(measured, everything), ""),
    ]
    far = sorted(others, key=lambda row: -abs(row.error(speeds)))[:5]
    return figures, {
        "speeds": vars(speeds),
        "by_chance": by_chance,
        "furthest": {row.name: row.error(speeds) for row in far},
    }


def _largest(measured: Sequence[Row]) -> list[Figure]:
    """175 billion weights on 512 GPUs, from runs on at most 256; then with three short runs of its own."""
    smaller, target = [row for row in measured if row.gpus <= 256], [row for row in measured if row.billions > 150]
    speeds = fit(smaller)
    held = {name: by / 5 for name, by in UNSURE.items()}
    errors, slower = [], []
    for own in combinations(range(len(target)), 3):
        mended = fit([target[index] for index in own], speeds, held)
        others = [row for index, row in enumerate(target) if index not in own]
        errors.append(_error(others, mended))
        taken = min(target, key=lambda row: row.predict(mended))
        slower.append(taken.seconds / min(row.seconds for row in target) - 1)
    name, few = f"175B on 512 GPUs, {len(target)} rows", len(smaller)
    other = f"with 3 of its own rows, mean of {len(errors)} choices"
    return [
        Figure(f"{name}: mean error, fitted on {few} rows of at most 256", _error(target, speeds), "", at_most=0.08),
        Figure(f"{name}: mean error of the others, {other}", fmean(errors), "", at_most=0.03),
        Figure(f"{name}: by how much the layout so chosen is slower than the best, {other}", fmean(slower), ""),
    ]


def _chosen(measured: Sequence[Row]) -> list[Figure]:
    """Run the best five, choose the best: how far is it from the best of all?"""
    chosen = choose(measured, ROWS)
    speeds = fit([measured[index] for index in chosen])
    groups = defaultdict(list)
    for row in measured:
        groups[row.group].append(row)
    large = [group for group in groups.values() if len(group) > 5]
    figures = []
    for count, goal in ((1, None), (3, None), (5, 0.95)):
        near = 0
        for group in large:
            tried = sorted(group, key=lambda row: row.predict(speeds))[:count]
            near += min(row.seconds for row in tried) <= 1.05 * min(row.seconds for row in group)
        what = f"choosing, {len(large)} groups of 6 to {max(map(len, large))} layouts"
        figures.append(Figure(f"{what}: best of {count} within 5 % of the best", near / len(large), "", at_least=goal))
    return figures


def _covered(measured: Sequence[Row], splits: int) -> list[Figure]:
    """Bars from the errors of few rows: how often they hold what other rows took."""
    figures = []
    for count in (5, ROWS, 60):
        inside, width = _held_times(measured, count, range(100, 100 + splits))
        held = [each for split in inside for each in split]
        share = f"bars of 90 % from {count} rows, over {len(held) // splits} others x {splits} splits"
        figures.append(Figure(f"{share}: how many they hold", fmean(held), "", at_least=0.85))
        if count > 5:
            figures.append(Figure(f"{share}: not too wide", fmean(held), "", at_most=0.95))
        figures.append(Figure(f"{share}: width to each side, as logarithm", fmean(width), ""))
    return figures


NOTES = (
    "Rows of vTrain (KAIST, MICRO 2024, github.com/VIA-Research/vTrain, MIT licence): a part of the 1,440 and 109 rows "
    "that it has, as many as `rows` says. Full recomputation of activations and no overlap of gradients are "
    "assumed of them: the files do not state it.",
    "vTrain itself reports 8.37 % on one machine and 14.73 % on several, from traces of every kernel.",
    "What is fitted: nine numbers (`swift_plan/timing.py`, Speeds). Where even all rows together leave a larger "
    "error than the goal, the rest is the rows' own: some are slower than equal layouts with a smaller micro-batch "
    "by a factor of two.",
)


MEMORY = ROOT / "benchmarks" / "results" / "plan_memory.json"
KNOWN = (20, 48)
"""Runs of which a bar of memory is made."""
KNOWN_TIMES = 60
CAPACITIES = 201
"""Sizes of a device, between half of what a run takes and twice that, for which a run is judged to fit or not."""


def bars(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    runs: Mapping[str, Any] = json.loads(MEMORY.read_text(encoding="utf-8"))["details"]["runs"]
    figures: list[Figure] = []
    held: dict[str, float] = {}
    for level in ("traced", "counted"):
        errors = [-log(1 + run[level]["error"]) for run in runs.values()]
        for count in KNOWN:
            share, width = _held_memory(errors, count, 20 if quick else 400)
            held[f"{level}, {count}"] = share
            figures += _shown(f"memory {level}, bars from {count} runs, {len(errors) - count} others", share, width)
    every = [*_measured("single"), *_measured("multi")]
    splits, widths = _held_times(every, KNOWN_TIMES, range(500, 501 if quick else 506))
    inside = [fmean(each) for each in splits]
    others = f"time, bars from {KNOWN_TIMES} rows, {len(every) - KNOWN_TIMES} others"
    figures += _shown(others, fmean(inside), median(widths))
    both = len(runs) - KNOWN[1], len(every) - KNOWN_TIMES
    share = (both[0] * held[f"traced, {KNOWN[1]}"] + both[1] * fmean(inside)) / sum(both)
    figures += _goal(f"memory and time, {sum(both)} configurations held out in each split", share)
    figures += _fitting(runs)
    return figures, {"splits of the time": inside, "notes": BARS_NOTES}


def _shown(title: str, share: float, width: float) -> list[Figure]:
    return [*_goal(title, share), Figure(f"{title}: width to each side", 100 * (exp(width) - 1), "%")]


def _goal(title: str, share: float) -> list[Figure]:
    return [
        Figure(f"{title}: how many bars of 90 % hold", share, "", at_least=0.85),
        Figure(f"{title}: not too wide", share, "", at_most=0.95),
    ]


def _held_memory(errors: Sequence[float], count: int, splits: int) -> tuple[float, float]:
    """Return which part of the runs that were held out their bars hold, over many splits, and the bars' width."""
    held, widths = [], []
    for seed in range(splits):
        order = random.Random(seed).sample(list(errors), len(errors))
        bar = Bars(order[:count], assumed=MEMORY_ASSUMED).around(1.0)
        held += [log(bar.low) <= error <= log(bar.high) for error in order[count:]]
        widths.append(log(bar.high))
    return fmean(held), median(widths)


def _held_times(every: Sequence[Row], count: int, seeds: Sequence[int]) -> tuple[list[list[bool]], list[float]]:
    """Fit speeds on known rows, by chance, and make bars of them; return which others they hold, and their widths."""
    inside, widths = [], []
    for seed in seeds:
        order = random.Random(seed).sample(list(every), len(every))
        known, others = order[:count], order[count:]
        speeds, bars = fit(known), Bars(crossed(known))
        widths.append(log(bars.around(1.0).high))
        inside.append([_inside(bars, row.predict(speeds), row.seconds) for row in others])
    return inside, widths


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
            Figure(f"memory {level}: of plans predicted to fit, those without room", 100 * lacked, "%", at_most=1.0),
            Figure(f"memory {level}: of plans predicted not to fit, those that do", 100 * refused, "%", at_most=5.0),
        ]
    return figures


def _share(
    cases: Sequence[tuple[float, float]], judged: Callable[[float, float], bool], wrong: Callable[[float, float], bool]
) -> float:
    """Return the part of judgements of all runs and sizes of devices that turn out wrong."""
    judged_of = wrong_of = 0
    for planned, peak in cases:
        for step in range(CAPACITIES):
            room = peak * 2 ** (2 * step / (CAPACITIES - 1) - 1)
            if judged(planned, room):
                judged_of += 1
                wrong_of += wrong(peak, room)
    return wrong_of / judged_of


BARS_NOTES = (
    "Memory: log(measured / planned) of the 96 runs on the CPU, known ones chosen at random; the estimates were mended "
    "against the same runs, so that these bars are narrower than those of engines that were not looked at.",
    "Time: vTrain's rows on 2 to 512 A100, one machine and several together; bars of errors that are each of a row "
    "without a part in its own prediction.",
    "Fitting: each run is judged for 201 sizes of a device, in equal ratios from half of what it took to twice that, "
    "as `swift plan` judges: 8 % are to be left free. What is wrong of plans that do not fit is that margin's "
    "price.",
)


def crossed(rows: Sequence[MeasuredStep], folds: int = 5) -> list[float]:
    """Return the error of every row, as logarithm, under speeds that were fitted without it."""
    errors = [0.0] * len(rows)
    for fold in range(min(folds, len(rows))):
        others = [row for index, row in enumerate(rows) if index % folds != fold]
        speeds = fit(others)
        for index in range(fold, len(rows), folds):
            errors[index] = log(rows[index].seconds / rows[index].predict(speeds))
    return errors


def choose(rows: Sequence[MeasuredStep], count: int) -> list[int]:
    """Return which rows to measure, as indices: those from which the speeds are learned best.

    Each next one is the row whose time is least certain after those before it. No measurement is looked at: it is for
    choosing what to run.
    """
    begun = Speeds()
    # The host decides the time of small layers, unless it is fast: both may be true.
    views = [_View(rows, begun), _View(rows, replace(begun, launch=5 * begun.launch))]
    left = set(range(len(rows)))
    chosen: list[int] = []
    while left and len(chosen) < count:
        best = max(left, key=lambda index: (sum(log1p(view.doubt(index)) for view in views), -index))
        left.remove(best)
        chosen.append(best)
        for view in views:
            view.learn(best)
    return chosen


class _View:
    """How times depend on speeds, seen from one calibration, and what is left uncertain of the speeds."""

    def __init__(self, rows: Sequence[MeasuredStep], at: Speeds) -> None:
        self._slopes: list[list[float]] = []
        for row in rows:
            here = log(row.predict(at))
            moved = [replace(at, **{name: getattr(at, name) * exp(_SMALL)}) for name in UNSURE]
            self._slopes.append([(log(row.predict(each)) - here) / _SMALL / USUAL for each in moved])
        self._spread = [[by * by * (i == j) for j in range(len(UNSURE))] for i, by in enumerate(UNSURE.values())]

    def doubt(self, index: int) -> float:
        """Return the variance of a row's predicted time, in units of the usual error's."""
        return _dot(self._slopes[index], [_dot(row, self._slopes[index]) for row in self._spread])

    def learn(self, index: int) -> None:
        """Take away what a measurement of this row would settle (Sherman and Morrison)."""
        seen = [_dot(row, self._slopes[index]) for row in self._spread]
        over = 1 + _dot(self._slopes[index], seen)
        self._spread = [
            [value - a * b / over for value, b in zip(row, seen, strict=True)]
            for row, a in zip(self._spread, seen, strict=True)
        ]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))

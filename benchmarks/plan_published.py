"""Memory and time of published runs on up to 12,288 GPUs, beside what `swift plan` counts for them.

The rows, with their sources, are in `published.json`. One number is fitted for each kind of device, the share of its
peak that products reach, and on rows of other sources than the one that is predicted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.facts import Figure
from swift.planning import PlannedBackend, planned_backends
from swift_plan.cluster import Cluster, cluster
from swift_plan.counted import CountedPlan
from swift_plan.fit import MeasuredStep, fit
from swift_plan.known import config_of
from swift_plan.shape import ModelShape, shape_of
from swift_plan.timing import Speeds, Timing
from swift_plan.workload import Workload

FIXTURE = Path(__file__).with_name("published.json")
_GIB = 2.0**30
_LENGTH, _VOCABULARY = 2048, 51200
_ONE_NUMBER = {"matmul": 0.5}


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    published = json.loads(FIXTURE.read_text(encoding="utf-8"))
    figures = [figure for row in published["memory"] for figure in _memory(row)]
    of_times, details = _times(published["times"])
    figures += of_times
    figures += [_order(row) for row in published["orders"]]
    return figures, {"rows": details, "notes": NOTES}


@cache
def _backend(name: str, *more: str) -> PlannedBackend:
    return planned_backends(["--model", "x", "--backend", name, "--train_type", "full", *more], "pt")[0][0]


def _shape(row: Mapping[str, Any]) -> ModelShape:
    if "known" in row:
        return shape_of(config_of(row["known"]), row["known"])
    hidden, layers, heads = row["model"]
    return ModelShape(
        row["name"], "gpt2", layers, hidden, heads, heads, hidden // heads, _VOCABULARY, 4 * hidden, gated=False,
        tied=True, positions=row.get("length", _LENGTH),
    )  # fmt: skip


def _case(row: Mapping[str, Any]) -> CountedPlan:
    sharded = "known" in row
    own = () if sharded or "backend" in row else ("--backend.use_distributed_optimizer", "false")
    backend = _backend(row.get("backend", "megatron"), *own)
    workload = Workload(row["rows"], row.get("length", _LENGTH), False, 2.0, 2.0, False)
    sizes = {name: row.get(name, 1) for name in ("tp", "pp", "vpp")}
    data = row.get("dp", 1)
    over = sharded or "backend" in row
    sizes |= {"dp_shard": data if over else 1, "dp_replicate": 1 if over else data}
    sizes["sequence_parallel"] = row.get("sp", False)
    return CountedPlan.of(backend, _shape(row), workload, sizes, row["batch"], recompute=row.get("recompute", False))


def _memory(row: Mapping[str, Any]) -> list[Figure]:
    case = _case({**row, "sp": True})
    kept = {"activations": case.memory["activations"], "states": 0.0}
    kept["states"] = sum(case.memory[name] for name in ("weights", "gradients", "fp32 weights", "optimizer"))
    return [
        Figure(f"{row['name']}: error of {part}, {row[part]} GiB", abs(size / _GIB / row[part] - 1), "", at_most=0.06)
        for part, size in kept.items()
    ]


def _seconds(row: Mapping[str, Any], case: CountedPlan, where: Cluster) -> float:
    """Return the seconds of a step; a share of the peak is that without what is recomputed."""
    if "seconds" in row:
        return float(row["seconds"])
    shape, work = case.shape, case.workload
    each = shape.layers * shape.layer_flops(2 * work.length, with_experts=False) + shape.head_flops
    speed = row["tflops"] if "tflops" in row else row["mfu"] * where.device.tflops
    return float(3 * work.tokens * each / (where.devices * speed * 1e12))


def _predicted(case: CountedPlan, where: Cluster, speeds: Speeds) -> float:
    return case.time(Timing(where, speeds)).total


def _times(rows: list[Mapping[str, Any]]) -> tuple[list[Figure], list[Mapping[str, Any]]]:
    measured = []
    for row in rows:
        case = _case(row)
        where = cluster(f"{case.layout.world}x{row['device']}")
        measured.append(MeasuredStep(partial(_predicted, case, where), _seconds(row, case, where)))
    errors: list[float] = []
    details: list[Mapping[str, Any]] = []
    for row, one in zip(rows, measured, strict=True):
        others = [
            other
            for beside, other in zip(rows, measured, strict=True)
            if beside["device"] == row["device"] and beside["source"] != row["source"]
        ]
        speeds = fit(others, unsure=_ONE_NUMBER)
        errors.append(one.error(speeds))
        details.append({**row, "seconds": one.seconds, "predicted": one.predict(speeds), "matmul": speeds.matmul})
    figures = [
        Figure(f"{row['name']} ({row['source']}{'' if row['read'] else ', as cited'}): error", error, "")
        for row, error in zip(rows, errors, strict=True)
    ]
    figures.append(Figure(f"time of {len(rows)} rows: mean error", fmean(map(abs, errors)), "", at_most=0.15))
    figures.append(Figure(f"time of {len(rows)} rows: largest error", max(map(abs, errors)), "", at_most=0.30))
    return figures, details


def _order(row: Mapping[str, Any]) -> Figure:
    gpus = row["gpus"]
    common = {"name": row["name"], "model": [12288, 96, 96], "rows": 1536, "recompute": True}
    pipelines = _case({**common, "tp": 8, "pp": 12, "dp": gpus // 96, "batch": 1})
    shape, work = pipelines.shape, pipelines.workload
    zero = CountedPlan.of(
        _backend("deepspeed", "--deepspeed", "zero3"), shape, work, {"dp_shard": gpus, "dp_replicate": 1},
        row["zero_batch"], recompute=True,
    )  # fmt: skip
    timing = Timing(cluster(f"{gpus}xA100"))
    ratio = zero.time(timing).total / pipelines.time(timing).total
    return Figure(f"{row['name']}: times as long", ratio, at_least=1.0)


NOTES = (
    "Memory: states of the fullest process have its part of the embedding, which the published figures leave out; with "
    "many stages of few layers that is a visible part.",
    "Not compared, so not met: rows in FP8 (T7, T8, T9 and the FP8 part of M4 to M9), for which no speed "
    "of products was fitted; M4 to M7 (torchtitan recomputes single operations and shards sequences under FSDP, which "
    "swift's FSDP backend does not); M8; M10 to M12 (models cut for SimuMax on B200).",
    "'As cited': from the paper as others cite it; the table itself was not read.",
)

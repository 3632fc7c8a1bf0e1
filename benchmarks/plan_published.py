"""Compare memory and time of published runs on up to 12,288 GPUs with the counts of `swift plan`.

`published.json` has the rows with their sources. One number is fitted for each kind of device: the fraction of its peak
that products reach, on rows of other sources than the predicted one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.counted_plan import CountedPlan
from benchmarks.facts import Figure
from swift.planning import PlannedBackend, planned_backends
from swift_plan.cluster import Cluster, cluster
from swift_plan.fit import MeasuredStep, fit
from swift_plan.shape import ModelShape, config_of, shape_of
from swift_plan.timing import Speeds, Timing
from swift_plan.workload import Workload

FIXTURE = Path(__file__).with_name("published.json")
_GIB = 2.0**30
_LENGTH, VOCABULARY = 2048, 51200
_ONE_NUMBER = {"matmul": 0.5}


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    published = json.loads(FIXTURE.read_text(encoding="utf-8"))
    figures = [figure for row in published["memory"] for figure in _memory(row)]
    of_times, details = _times(published["times"])
    figures += of_times
    figures += _peaks(published["times"])
    seconds = {row["name"]: row["predicted"] for row in details}
    figures += [_order(row, seconds) for row in published["orders"]]
    return figures, {"rows": details, "notes": NOTES}


@cache
def _backend(name: str, *more: str) -> PlannedBackend:
    return planned_backends(["--model", "x", "--backend", name, "--train_type", "full", *more], "pt")[0][0]


def _shape(row: Mapping[str, Any]) -> ModelShape:
    if "known" in row:
        shape = shape_of(config_of(row["known"]), row["known"])
        cut = {name: row[name] for name in ("layers", "dense_layers") if name in row}
        return replace(shape, **cut)
    return gpt_shape(row["name"], *row["model"], length=row.get("length", _LENGTH))


def gpt_shape(name: str, hidden: int, layers: int, heads: int, length: int) -> ModelShape:
    return ModelShape(
        name, "gpt2", layers, hidden, heads, heads, hidden // heads, VOCABULARY, 4 * hidden, gated=False, tied=True,
        positions=length,
    )  # fmt: skip


def _case(row: Mapping[str, Any], *, recompute: bool | None = None) -> CountedPlan:
    sharded = "known" in row
    own = () if sharded or "backend" in row else ("--backend.use_distributed_optimizer", "false")
    if row.get("fp8"):
        own = (*own, "--backend.fp8", "hybrid", "--torch_dtype", "bfloat16")
    name = row.get("backend", "megatron")
    backend = _backend(name, *own, *(row.get("flags", ()) if name == "fsdp" else ()))
    fp8 = row.get("fp8", False)
    workload = Workload(row["rows"], row.get("length", _LENGTH), False, 2.0, False, fp8=fp8)
    sizes = {name: row.get(name, 1) for name in ("tp", "pp", "vpp", "cp", "ep")}
    data = row.get("dp", 1)
    over = sharded or "backend" in row
    sizes |= {"dp_shard": data if over else 1, "dp_replicate": 1 if over else data}
    sizes["sequence_parallel"] = row.get("sp", False)
    again = row.get("recompute", False) if recompute is None else recompute
    return CountedPlan.of(backend, _shape(row), workload, sizes, row["batch"], recompute=again)


def _memory(row: Mapping[str, Any]) -> list[Figure]:
    case = _case({**row, "sp": True})
    kept = {"activations": case.memory["activations"], "states": 0.0}
    kept["states"] = sum(case.memory[name] for name in ("weights", "gradients", "fp32 weights", "optimizer"))
    return [
        Figure(f"{row['name']}: error of {part}, {row[part]} GiB", abs(size / _GIB / row[part] - 1), "", at_most=0.06)
        for part, size in kept.items()
    ]


def _peaks(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Compare the whole of what a device has, where that was published."""
    figures, errors = [], []
    for row in rows:
        if "gib" in row:
            error = _peak(row) / _GIB / row["gib"] - 1
            errors.append(abs(error))
            figures.append(Figure(f"{row['name']}: error of the peak, {row['gib']} GiB", error, ""))
    title = f"peak of {len(errors)} rows"
    return [
        *figures,
        Figure(f"{title}: mean error", fmean(errors), "", at_most=0.06),
        Figure(f"{title}: how many are within 6 %", sum(error <= 0.06 for error in errors), "", at_least=len(errors)),
    ]


def _peak(row: Mapping[str, Any]) -> float:
    case = _case(row)
    peak, shape = sum(case.memory.values()), case.shape
    tokens = row["batch"] * case.workload.length / row.get("cp", 1)
    if row.get("selective"):
        peak += tokens * shape.layers * (_kept_selectively(shape) - case.kept)
    if "logits" in row:
        # All of them, and not chunk by chunk.
        peak += row["logits"] * tokens * shape.vocabulary / case.layout.tp - case.memory.get("the loss, by chunks", 0.0)
    if row.get("sp") and row.get("backend") == "fsdp":
        # Sequences cut under FSDP: swift has that in Megatron, whose activations are counted for it.
        kept = ("activations", "a layer's backward pass", "the loss, by chunks")
        cut = _case({**row, "backend": "megatron"})
        peak += sum(cut.memory.get(name, 0.0) - case.memory.get(name, 0.0) for name in kept)
    return peak


def _kept_selectively(shape: ModelShape) -> float:
    """Return the bytes a token that torchtitan's selective recomputing keeps of a layer.

    What comes in, what attention gives, and of the seven products every second: queries, values, gate, and the last.
    """
    return 2.0 * (2 * shape.hidden + 2 * shape.queries + shape.keys + shape.width)


def _seconds(row: Mapping[str, Any], case: CountedPlan, where: Cluster) -> float:
    """Return the seconds of a step; a share of the peak is that without what is recomputed."""
    if "seconds" in row:
        return float(row["seconds"])
    if "tps" in row:
        return float(case.workload.tokens / (where.devices * row["tps"]))
    shape, work = case.shape, case.workload
    each = shape.layers * shape.layer_flops(2 * work.length, with_experts=False) + shape.head_flops
    speed = row["tflops"] if "tflops" in row else row["mfu"] * where.device.tflops
    return float(3 * work.tokens * each / (where.devices * speed * 1e12))


def _predicted(cases: Sequence[CountedPlan], where: Cluster, speeds: Speeds) -> float:
    return fmean(case.time(Timing(where, speeds)).total for case in cases)


def _times(rows: list[Mapping[str, Any]]) -> tuple[list[Figure], list[Mapping[str, Any]]]:
    measured = []
    for row in rows:
        # Where every second product is recomputed: halfway between all and none.
        ways = (True, False) if row.get("selective") else (None,)
        cases = [_case(row, recompute=again) for again in ways]
        where = cluster(f"{cases[0].layout.world}x{row['device']}")
        measured.append(MeasuredStep(partial(_predicted, cases, where), _seconds(row, cases[0], where)))
    errors: list[float] = []
    details: list[Mapping[str, Any]] = []
    for row, one in zip(rows, measured, strict=True):
        others = [other for row_of_other, other in zip(rows, measured, strict=True) if _calibrates(row_of_other, row)]
        speeds = fit(others, unsure=_ONE_NUMBER)
        errors.append(one.error(speeds))
        details.append({**row, "seconds": one.seconds, "predicted": one.predict(speeds), "matmul": speeds.matmul})
    figures = [
        Figure(f"{row['name']} ({row['source']}{'' if row['read'] else ', as cited'}): error", error, "")
        for row, error in zip(rows, errors, strict=True)
    ]
    # The study's numbers: a row of memory, M, may have a time as well.
    for kind, goals in (("T", (0.15, 0.30)), ("M", (None, None))):
        own = [abs(error) for row, error in zip(rows, errors, strict=True) if _of_memory(row) == (kind == "M")]
        title = f"time of {len(own)} rows {kind}1 to {kind}{10 if kind == 'T' else 12}"
        figures += [
            Figure(f"{title}: mean error", fmean(own), "", at_most=goals[0]),
            Figure(f"{title}: largest error", max(own), "", at_most=goals[1]),
        ]
    return figures, details


def _calibrates(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a measured row may have a say in the prediction of another one: of the same processor, by others."""
    # FP8 has an assumed factor, which rows in bfloat16 are to be kept free of.
    apart = "throttled" in one or ("fp8" in one and "fp8" not in other)
    return _kind(one) == _kind(other) and _who(one) != _who(other) and not apart


def _of_memory(row: Mapping[str, Any]) -> bool:
    """Whether a row is one of those that the study numbers by their memory."""
    return str(row["name"])[:1] == "M" and str(row["name"])[1:2].isdigit()


def _kind(row: Mapping[str, Any]) -> str:
    return {"H200": "H100", "H800": "H100"}.get(row["device"], str(row["device"]))


def _who(row: Mapping[str, Any]) -> str:
    return str(row["source"]).partition(" ")[0]


def _order(row: Mapping[str, Any], seconds: Mapping[str, float]) -> Figure:
    if "first" in row:
        return Figure(f"{row['name']}: times as long", seconds[row["second"]] / seconds[row["first"]], at_least=1.0)
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
    "M4 to M9 are torchtitan's: it recomputes every second product where a row has `selective`, keeps all logits "
    "(compiled, later, in bfloat16 alone), and cuts sequences under FSDP, whose activations are counted as Megatron's "
    "with the same cut; in a pipeline it keeps gathered weights. What is published is what the allocator has reserved.",
    "M4 to M8 ran on H100 of 500 W with slower memory: such rows calibrate no others.",
    "FP8: products are assumed to be 1.6 times as fast as in bfloat16, attention and head not, and "
    "rows in FP8 calibrate none in bfloat16.",
    "T7 and T8: the messages of experts are two thirds of the step that is planned. Those runs send a token once to "
    "each of at most four machines and hide the messages behind arithmetic (DualPipe); a plan has Megatron's own "
    "exchange, every copy of every token, hidden by nothing.",
    "T2: on 384 devices ZeRO-3 was 6 % behind, and is planned a quarter ahead. Apart from the planned arithmetic, "
    "its published time leaves room for messages at about one port's bandwidth a device; a ring through all eight is "
    "planned. That is inferred from the published times: why they were so slow is not known here.",
    "M7's second order, asynchronous tensor parallelism before the plain one, is not judged: swift has no such layout.",
    "M13 and M14 (Falcon-7B with three engines, PEFT's runs on one GPU) are left out: they have not been compared yet.",
    "'As cited': from the paper as others cite it; the table itself was not read.",
)

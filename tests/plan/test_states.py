"""What backends say they keep, against what was measured of processes that trained: `benchmarks/results`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from swift.contracts import ProcessLayout
from swift.planning import planned_backends
from swift_plan.machine import this_machine
from swift_plan.memory import StagesOf
from swift_plan.search import counted
from swift_plan.shape import shape_of
from swift_plan.timing import Timing
from swift_plan.workload import Workload

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
LARGE = {
    "model_type": "qwen3", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12, "num_key_value_heads": 6, "head_dim": 64, "vocab_size": 8192,
    "tie_word_embeddings": True,
}  # fmt: skip
"""The model of those benchmarks, of 84 million weights."""
MIDDLE = {
    **LARGE, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
"""That of `benchmarks/plan_runs.py`."""
MIB = 2.0**20
SPARE = 40.0
"""MiB that a process takes beside: its gradients' norms, buffers of the optimizer, what the C library keeps."""


def _measured() -> Iterator[tuple[str, str, int, float]]:
    """Yield backend, variant, processes and MiB of weights and moments of each process."""
    for backend in ("fsdp", "deepspeed"):
        for figure in json.loads((RESULTS / f"{backend}.json").read_text())["figures"]:
            found = re.fullmatch(r"(?:(zero\d), )?(\d) processes: weights and moments of each", figure["what"])
            if found and (found[1] or backend == "fsdp"):
                yield backend, found[1] or "", int(found[2]), float(figure["figure"].replace(",", "").split()[0])


@pytest.mark.parametrize(("backend", "variant", "processes", "measured"), [
    each for each in _measured() if each[1] not in ("zero3",)
])  # fmt: skip
def test_weights_and_moments_are_those_of_processes_that_trained(
    backend: str, variant: str, processes: int, measured: float
) -> None:
    words = ["--model", "x", "--backend", backend, "--train_type", "full", "--torch_dtype", "float32"]
    words += ["--deepspeed", variant] if variant else []
    planned = planned_backends(words, "sft")[0][0]
    shape = shape_of(LARGE, "large")
    work = Workload.of(planned, processes=processes, on_cpu=True)
    stages = StagesOf(planned, shape, work)
    run = planned.run({}, processes)
    (stage,) = stages.under(planned.layout(run))
    told = planned.memory(run, stage.weights)
    assert told is not None
    states = sum(told[name] for name in ("weights", "fp32 weights", "optimizer") if name in told) / MIB
    assert 0 <= measured - states <= SPARE


MIXTURE = {
    **MIDDLE, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
}  # fmt: skip


@pytest.mark.parametrize(("backend", "part"), [("fsdp", 0.5), ("deepspeed", 1.0)])
def test_tp_shards_experts_where_backend_does(backend: str, part: float) -> None:
    """FSDP2 shards experts over tensor parallel processes; AutoTP leaves them whole."""
    words = ["--model", "x", "--backend", backend, "--train_type", "full", "--torch_dtype", "float32"]
    planned = planned_backends(words, "sft")[0][0]
    stages = StagesOf(planned, shape_of(MIXTURE, "mixture"), Workload.of(planned, processes=2, on_cpu=True))
    (alone,), (shared,) = (stages.under(ProcessLayout(tp=tp)) for tp in (1, 2))
    assert shared.weights.trained_experts == pytest.approx(part * alone.weights.trained_experts)


UPDATED = ("zero1, full, recomputed, 2", "zero2, full, recomputed, 1", "zero2, full, recomputed, 2",
           "zero2, full, recomputed, 4", "megatron, full, recomputed, 2", "megatron, full, recomputed, 4")  # fmt: skip
"""Runs that had the most of all between the backward pass and the update."""
LEFT = ("fsdp, full, 1", "fsdp, full, recomputed, 1", "fsdp, full, 2", "fsdp, full, recomputed, 2",
        "fsdp, full, recomputed, 4")  # fmt: skip
"""Runs of FSDP2, whose gradients take the place of the activations of the layer that they are of."""
TEXTS, LENGTH = {1: 4, 2: 4, 4: 2}, 128
"""Of a micro-batch, by the number of processes, and the tokens of each."""


@pytest.mark.parametrize("name", [*UPDATED, *LEFT])
def test_peak_matches_trained_ranks(name: str) -> None:
    """The peak of a plan is that of processes that trained, before the update or while gradients leave."""
    planned, measured = _planned_and_measured(name)
    assert sum(planned.values()) == pytest.approx(measured, rel=0.03)
    assert "activations" not in planned or name in LEFT
    if "gradients on their way" in planned:
        assert planned["a layer's backward pass"] == 0


def _planned_and_measured(name: str) -> tuple[dict[str, float], float]:
    """Return a plan's terms with the program's own, and the peak, in MiB."""
    details = json.loads((RESULTS / "plan_memory.json").read_text())["details"]
    way, processes = name.partition(",")[0], int(name[-1])
    beside = details["taken by the program itself, MiB"][way]
    texts = TEXTS[processes]
    words = ["--model", "x", "--train_type", "full", "--torch_dtype", "float32"]
    words += ["--gradient_checkpointing", str("recomputed" in name), "--per_device_train_batch_size", str(texts)]
    words += ["--deepspeed", way] if way.startswith("zero") else ["--backend", way]
    planned = planned_backends(words, "sft")[0][0]
    where = this_machine(processes, 1)
    data = planned.layout(planned.run({}, processes)).data
    plan = counted(
        planned, shape_of(MIDDLE, "middle"), MIDDLE, where, Timing(where), tokens=texts * LENGTH * data,
        compute_bytes=4.0,
    )  # fmt: skip
    terms = {term: size / MIB for term, size in plan.memory.items()}
    return {"the program's own": beside, **terms}, details["runs"][name]["peak"]


def test_there_are_measurements() -> None:
    assert len(list(_measured())) >= 12

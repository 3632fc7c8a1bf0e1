"""What backends say they keep, against what was measured of processes that trained: `benchmarks/results`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from swift.planning import planned_backends
from swift_plan.memory import StagesOf
from swift_plan.shape import shape_of
from swift_plan.workload import TrainedCount, Workload

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
LARGE = {
    "model_type": "qwen3", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12, "num_key_value_heads": 6, "head_dim": 64, "vocab_size": 8192,
    "tie_word_embeddings": True,
}  # fmt: skip
"""The model of those benchmarks, of 84 million weights."""
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
    stages = StagesOf(shape, TrainedCount(planned, shape, work), work, planned.slot_bytes((8, 8)))
    run = planned.run({}, processes)
    (stage,) = stages.under(planned.layout(run))
    told = planned.memory(run, stage.weights)
    assert told is not None
    states = sum(told[name] for name in ("weights", "fp32 weights", "optimizer") if name in told) / MIB
    assert 0 <= measured - states <= SPARE


def test_there_are_measurements() -> None:
    assert len(list(_measured())) >= 12

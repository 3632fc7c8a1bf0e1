"""Adapters on experts in plans: their values as PEFT makes them, and the memory that autograd is seen to keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from swift.config.own_options import LoraOptions
from swift.config.sections import TunerSection
from swift.models.tuners import apply_tuner, weight_counts
from swift.planning import planned_backends
from swift_plan.memory import Activations, ProcessLayout, StagesOf
from swift_plan.shape import shape_of
from swift_plan.tracing import Trace
from swift_plan.workload import Workload

_CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 16, "num_hidden_layers": 3, "vocab_size": 512, "tie_word_embeddings": False,
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "mlp_only_layers": [],
}  # fmt: skip
_GATE_UP, _DOWN = 8 * 2 * 96 * 64, 8 * 64 * 96
WORDS = {
    "none": ((), 0, 0),
    "all": (("--target_modules", "all-linear", "experts"), _GATE_UP + _DOWN, _GATE_UP),
    "one": (("--target_parameters", "mlp.experts.down_proj"), _DOWN, _DOWN),
}


def _planned(*words: str) -> Any:
    given = ["--model", "x", "--backend", "torch", "--torch_dtype", "bfloat16", "--lora_dropout", "0", *words]
    (backend,), _ = planned_backends(given, "sft")
    return backend


@pytest.mark.parametrize("name", WORDS)
def test_adapters_on_experts_are_counted(name: str) -> None:
    """A plan trains as many values as PEFT's model has."""
    backend = _planned(*WORDS[name][0])
    shape, work = shape_of(_CONFIG, "x"), Workload.of(backend, processes=1, on_cpu=True)
    (stage,) = StagesOf(backend, shape, work).under(ProcessLayout())
    config = AutoConfig.for_model(**_CONFIG)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    options: LoraOptions = backend.tuner_options
    chosen = {"targets": options.targets, "target_parameters": options.target_parameters, "dropout": 0.0}
    trained, _ = weight_counts(apply_tuner(model, TunerSection(kind="lora", **chosen), seed=0, say=lambda _: None))
    assert stage.weights.trained == trained


@pytest.mark.full
@pytest.mark.parametrize("name", ["all", "one"])
def test_sums_of_experts_and_adapters_take_memory(name: str) -> None:
    """PEFT's sums stay until the backward pass, however many tokens there are: counted as traced."""
    words, sums, largest = WORDS[name]
    backend = _planned(*words)
    work = Workload.of(backend, processes=1, on_cpu=True)
    counted = Activations(backend, backend.run({}, 1), shape_of(_CONFIG, "x"), work)._layers
    trace = Trace(backend, _CONFIG, length=48, compute_bytes=2.0, on_cpu=True)
    plain = Trace(_planned(), _CONFIG, length=48, compute_bytes=2.0, on_cpu=True).layer(recompute=False)
    once, again = trace.layer(recompute=False), trace.layer(recompute=True)
    assert counted[0].held == 2 * sums == pytest.approx(once.held, rel=0.01)
    assert counted[0].fixed == 2 * largest == pytest.approx(once.fixed, rel=0.1)
    assert counted[1].fixed == pytest.approx(again.fixed, rel=0.1)
    assert again.held == counted[1].held == 0
    assert once.kept == pytest.approx(plain.kept, rel=0.25)

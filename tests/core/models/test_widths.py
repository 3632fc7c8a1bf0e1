"""Tensor parallel cuts widths into equal parts: which ones, and what is said of a width that does not divide."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from torch import nn

from swift.errors import UnsupportedLayout
from swift.toolkit import check_widths, tensor_parallel_spec

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}


def config(name: str, **values: Any) -> Any:
    return getattr(transformers, f"{name}Config")(hidden_size=64, num_hidden_layers=2, **values)


REFUSED = {
    "255 by 2": ("Qwen3", {"intermediate_size": 255}, 2, "intermediate_size"),
    "256 by 3": ("Qwen3", {"intermediate_size": 256}, 3, "intermediate_size"),
    "some layers without experts": (
        "Qwen3Moe",
        {**EXPERTS, "num_experts": 4, "intermediate_size": 255, "mlp_only_layers": [0]},
        2,
        "intermediate_size",
    ),
    "an expert that all tokens take": (
        "Qwen2Moe",
        {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 33},
        2,
        "shared_expert_intermediate_size",
    ),
    "several of them": (
        "DeepseekV3",
        {**EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 33, "intermediate_size": 64},
        2,
        "n_shared_experts × moe_intermediate_size",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_width_that_does_not_divide_is_refused_by_its_name(name: str) -> None:
    architecture, values, tp, key = REFUSED[name]
    with pytest.raises(UnsupportedLayout, match=f"{key} .*is not divisible by parallel.tp {tp}") as caught:
        check_widths(config(architecture, **values), tp)
    assert "divisor" in (caught.value.hint or "")


ALLOWED = {
    "even": ("Qwen3", {"intermediate_size": 256}, 2),
    "one process": ("Qwen3", {"intermediate_size": 255}, 1),
    "a width that no layer has": ("Qwen3Moe", {**EXPERTS, "num_experts": 4, "intermediate_size": 255}, 2),
    "a width of experts alone": ("Mixtral", {"num_local_experts": 4, "intermediate_size": 255}, 2),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_widths_that_are_not_cut_may_be_anything(name: str) -> None:
    architecture, values, tp = ALLOWED[name]
    check_widths(config(architecture, **values), tp)


def test_matrix_of_tp_spec_is_refused_by_any_config_name() -> None:
    """A matrix of the model's own TP spec is refused whatever its configuration calls it."""
    small = config("Qwen3", intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, vocab_size=32)
    model: Any = transformers.AutoModelForCausalLM.from_config(small)
    model.model.layers[1].mlp.gate_proj = nn.Linear(64, 95)
    with pytest.raises(UnsupportedLayout, match=r"model.layers.1.mlp.gate_proj 95 "):
        tensor_parallel_spec(model, ways=2)

"""What plans of transformers, and those derived from the structure of a model, cut."""

from __future__ import annotations

from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from tiny_types import tiny_model

from swift.errors import UnsupportedLayout
from swift.models.tp_derive import derived_plans
from swift.models.tp_spec import ParameterCut, tensor_parallel_spec

LAYER = "model.layers.1"


def test_experts_are_cut_along_their_width() -> None:
    """Two packed matrices are cut one by one; a router stays whole."""
    spec = tensor_parallel_spec(tiny_model("mixtral"), ways=2)
    assert spec.experts[f"{LAYER}.mlp.experts"] == {"gate_up_proj": ParameterCut(1, 2), "down_proj": ParameterCut(2)}
    assert spec.cut[f"{LAYER}.self_attn.o_proj"] == "rowwise"
    assert not any("gate" in name for name in spec.cut)


def test_latent_attention_adds_up_shared_keys() -> None:
    spec = tensor_parallel_spec(tiny_model("deepseek_v2"), ways=2)
    assert spec.tails[f"{LAYER}.self_attn.kv_a_proj_with_mqa"] == 8
    assert spec.cut[f"{LAYER}.self_attn.kv_b_proj"] == "colwise"


def test_adapters_are_whole_where_inputs_and_outputs_are() -> None:
    """An adapter is cut with its matrix, and whole where that is gathered."""
    phi, llama = (_with_lora(tiny_model(name), ["down_proj"]) for name in ("phi3", "llama"))
    assert f"{LAYER}.mlp.down_proj.base_layer" in tensor_parallel_spec(phi, ways=2).whole_outside
    assert not any("lora" in name for name in tensor_parallel_spec(phi, ways=2).cut)
    assert tensor_parallel_spec(llama, ways=2).cut[f"{LAYER}.mlp.down_proj.lora_A.default"] == "rowwise"


def test_adapters_on_stacked_experts_are_refused() -> None:
    model = _with_lora(tiny_model("mixtral"), [], target_parameters=["mlp.experts.down_proj"])
    with pytest.raises(UnsupportedLayout, match="adapters on its stacked experts"):
        tensor_parallel_spec(model, ways=2)


def test_plans_are_derived_from_structure() -> None:
    """Interleaved experts with biases, of which the last is added once; an MLP in a block; a fused one."""
    experts, mlp, fused = (derived_plans(tiny_model(name)) for name in ("gpt_oss", "opt", "granitemoehybrid"))
    name = "layers.*.mlp.experts"
    assert {
        name: "moe_tp_experts",
        f"{name}.gate_up_proj": "colwise",
        f"{name}.gate_up_proj_bias": "colwise",
        f"{name}.down_proj": "rowwise",
        f"{name}.down_proj_bias": "divided",
    } in experts
    assert {"layers.*.fc1": "colwise", "layers.*.fc2": "rowwise"} in mlp
    shared = "layers.*.shared_mlp"
    outside = {f"{shared}.input_linear": "colwise_gather_output", f"{shared}.output_linear": "rowwise_split_input"}
    assert outside in fused
    spec = tensor_parallel_spec(tiny_model("gpt_oss"), ways=2, plan=experts[-1])
    assert spec.experts["model.layers.0.mlp.experts"] == {
        "gate_up_proj": ParameterCut(2),
        "gate_up_proj_bias": ParameterCut(1),
        "down_proj": ParameterCut(1),
        "down_proj_bias": ParameterCut(None),
    }
    assert "model.layers.0.mlp.experts.down_proj_bias" in spec.partial


def _with_lora(model: Any, modules: list[str], **settings: Any) -> Any:
    return get_peft_model(model, LoraConfig(r=2, target_modules=modules, task_type="CAUSAL_LM", **settings))

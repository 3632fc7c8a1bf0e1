"""Which modules `all-linear` adapts, compared with PEFT itself on targets that are written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from peft import PeftModel
from peft.tuners.lora.layer import ParamWrapper
from safetensors.torch import save_file
from tiny_models import HEADS, SHARED, batch, tiny, write_architecture

from swift.config.sections import ModelSection, TunerSection
from swift.errors import ConfigError, UnsupportedLayout
from swift.models.load_adapter import attach_adapter
from swift.models.merge import merged
from swift.models.names import canonical_weights, name_map
from swift.models.peft_targets import all_linear, named_modules_kept, short_names, stacked_experts
from swift.models.source import open_source
from swift.models.tp_spec import tensor_parallel_spec
from swift.models.tuners import adapter_config, apply_tuner

torch.set_num_threads(1)

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
LATENT = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}
DENSE = {"gate_proj", "up_proj", "down_proj"}
MAMBA = {"vocab_size": 64, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "pad_token_id": 0}
BAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}


def llama4() -> Any:
    return transformers.Llama4TextConfig(
        **HEADS, intermediate_size_mlp=48, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2
    )


def phimoe() -> Any:
    return transformers.PhimoeConfig(**SHARED, num_local_experts=4, num_experts_per_tok=2)


def qwen2_moe() -> Any:
    sizes = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "mlp_only_layers": [0]}
    return transformers.Qwen2MoeConfig(**SHARED, num_experts=4, num_experts_per_tok=2, **sizes)


def mamba2() -> Any:
    return transformers.Mamba2Config(**MAMBA, num_heads=8, head_dim=8, n_groups=1, chunk_size=8)


def falcon_h1() -> Any:
    sizes = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
    return transformers.FalconH1Config(**HEADS, mamba_d_head=8, **sizes)


def bamba() -> Any:
    return transformers.BambaConfig(**SHARED, **BAMBA, attn_layer_indices=[1])


def falcon() -> Any:
    return transformers.FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)


def jamba() -> Any:
    sizes = {"num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8}
    layers = {"expert_layer_period": 2, "expert_layer_offset": 1}
    return transformers.JambaConfig(**SHARED, **sizes, **layers, use_mamba_kernels=False)


def deepseek_v4() -> Any:
    return transformers.DeepseekV4Config(**{**SHARED, "num_key_value_heads": 1})


CASES: dict[str, tuple[Callable[[], Any], set[str], str]] = {
    "llama4": (llama4, ATTENTION | DENSE, "none on router (a router)"),
    "phimoe": (phimoe, ATTENTION, "none on router (a router)"),
    "qwen2_moe": (qwen2_moe, ATTENTION | DENSE | {"shared_expert_gate"}, "none on the routed experts"),
    "mamba": (lambda: transformers.MambaConfig(**MAMBA), {"in_proj"}, "none on dt_proj, out_proj, x_proj (MambaMixer"),
    "mamba2": (mamba2, {"in_proj"}, "none on out_proj (Mamba2Mixer reads the weight directly and would bypass an "
    "adapter)"),
    "falcon_h1": (falcon_h1, ATTENTION | DENSE | {"in_proj"}, "none on out_proj (FalconH1Mixer"),
    "bamba": (bamba, ATTENTION | DENSE | {"in_proj"}, "none on out_proj (BambaMixer"),
    "jamba": (jamba, ATTENTION | DENSE | {"in_proj", "x_proj", "out_proj"}, "none on router (a router)"),
    "deepseek_v4": (
        deepseek_v4, {"q_a_proj", "q_b_proj", "kv_proj", "o_b_proj"} | DENSE,
        "none on o_a_proj (DeepseekV4GroupedLinear is not a plain linear layer)",
    ),
    "falcon, whose linear layers are a class of its own": (
        falcon, {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}, "",
    ),
}  # fmt: skip
"""Configuration, names of modules for PEFT, and what is printed."""


def adapted(model: torch.nn.Module) -> set[str]:
    """Names of the modules that have an adapter."""
    return {name.removesuffix(".lora_A") for name, _ in model.named_modules() if name.endswith(".lora_A")}


def made(configuration: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(configuration())


def with_adapters(model: Any, said: list[str] | None = None) -> torch.nn.Module:
    section = TunerSection(kind="lora", dropout=0.0)
    return apply_tuner(model, section, seed=0, say=(said if said is not None else []).append)


@pytest.mark.parametrize("name", list(CASES))
def test_all_linear_matches_peft_list(name: str) -> None:
    """PEFT itself, with names that are written by hand, adapts the same modules and has the same gradients."""
    from peft import LoraConfig, get_peft_model

    configuration, targets, sentence = CASES[name]
    said: list[str] = []
    ours = with_adapters(made(configuration), said)
    config = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=32, target_modules=targets)
    twin = get_peft_model(made(configuration), config)
    assert adapted(ours) == adapted(twin)
    assert sentence in "".join(said)
    assert bool(said) == bool(sentence)
    weights = dict(ours.named_parameters())
    with torch.no_grad():
        for key, parameter in twin.named_parameters():
            parameter.copy_(weights[key])
    for model in (ours, twin):
        model.eval()(input_ids=batch(), labels=batch(), use_cache=False).loss.backward()
    for key, parameter in twin.named_parameters():
        if ".lora_B." in key and parameter.grad is None:
            assert weights[key].grad is None, key
        elif ".lora_B." in key:
            torch.testing.assert_close(weights[key].grad, parameter.grad)


def test_a_layer_that_returns_more_than_its_product_is_left_out() -> None:
    """Whatever it is called: Llama 4's router is a subclass of `nn.Linear` that returns two tensors."""
    from transformers.models.llama4.modeling_llama4 import Llama4Router

    model = tiny()
    sizes = SimpleNamespace(hidden_size=32, num_local_experts=4, num_experts_per_tok=1)
    model.model.layers[0].mlp.extra_proj = Llama4Router(sizes)
    found = all_linear(model, ())
    assert found.left_out == {"Llama4Router is not a plain linear layer": ["extra_proj"]}
    assert set(found.targets) == ATTENTION | DENSE


@pytest.fixture
def deepseek() -> Any:
    """A mixture with a dense first layer and shared experts, whose names PEFT knows as those of routed ones."""
    return tiny("deepseek-v3")


def test_dense_layers_and_shared_experts_get_adapters(deepseek: Any) -> None:
    said: list[str] = []
    model = with_adapters(deepseek, said)
    dense = {f"base_model.model.model.layers.0.mlp.{name}" for name in DENSE}
    shared = {f"base_model.model.model.layers.1.mlp.shared_experts.{name}" for name in DENSE}
    latent = {f"base_model.model.model.layers.{layer}.self_attn.{name}" for layer in (0, 1) for name in LATENT}
    assert adapted(model) == dense | shared | latent
    assert "mlp.gate_proj" in said[0]
    assert "shared_experts.gate_proj" in said[0]
    assert "none on the routed experts (for these as well: --target_modules all-linear experts)" in said[0]
    config = adapter_config(model)
    assert config is not None
    assert not config["target_parameters"]
    dotted = {f"{where}.{name}" for where in ("mlp", "shared_experts") for name in DENSE}
    assert set(config["target_modules"]) == LATENT | dotted


def with_experts(model: Any, **options: Any) -> torch.nn.Module:
    section = TunerSection(kind="lora", targets=("all-linear", "experts"), **options)
    return apply_tuner(model, section, seed=0, say=lambda _: None)


@pytest.mark.parametrize("name", ["llama4", "phimoe", "qwen2_moe", "jamba", "deepseek_v4"])
def test_experts_get_adapters_by_one_word(name: str) -> None:
    """`experts` adds the stacked experts to all-linear, of any type, and defaults dropout to 0."""
    configuration, _, _ = CASES[name]
    model = with_experts(made(configuration))
    stacked = set(stacked_experts(made(configuration)))
    assert all(each.endswith(("experts.gate_up_proj", "experts.down_proj")) for each in stacked)
    wrapped = {
        f"{path.removeprefix('base_model.model.').replace('.base_layer', '')}.{module.parameter_name}"
        for path, module in model.named_modules()
        if isinstance(module, ParamWrapper)
    }
    assert wrapped == stacked
    linear = adapted(with_adapters(made(configuration)))
    assert {each for each in adapted(model) if ".experts" not in each} == linear


def test_experts_are_named_as_peft_names_them() -> None:
    """`target_parameters` chooses some of the stacked experts; other words are refused with those to type."""
    section = TunerSection(kind="lora", targets=("q_proj",), target_parameters=("mlp.experts.down_proj",))
    model = apply_tuner(made(phimoe), section, seed=0, say=lambda _: None)
    found = {type(module).__name__ for name, module in model.named_modules() if name.endswith("mlp.experts")}
    assert found == {"ParamWrapper"}
    assert adapter_config(model)["target_parameters"] == ["down_proj"]  # type: ignore[index]  # there is one
    alone = apply_tuner(made(phimoe), TunerSection(kind="lora", targets=("experts",)), seed=0, say=lambda _: None)
    assert all(name.endswith(("mlp.experts", "mlp.experts.base_layer")) for name in adapted(alone))
    assert len(adapted(alone)) == 4
    for changes, refused in (
        ({"target_parameters": ("mlp.experts.w1",)}, "no stacked experts 'mlp.experts.w1'"),
        ({"targets": ("all-linear", "experts"), "dropout": 0.1}, "do not support dropout"),
        ({"targets": ("experts",), "dora": True}, "do not support DoRA"),
        ({"targets": ("experts",), "init": "orthogonal"}, "do not support tuner.init orthogonal"),
    ):
        with pytest.raises(ConfigError, match=refused):
            apply_tuner(made(phimoe), TunerSection(kind="lora", **changes), seed=0, say=lambda _: None)
    with pytest.raises(ConfigError, match="llama model has no experts that are stacked"):
        with_experts(tiny("llama"))


@pytest.mark.parametrize("targets", [("all-linear",), ("all-linear", "experts")], ids=["shared", "routed"])
def test_adapters_of_a_mixture_survive_the_disk(deepseek: Any, tmp_path: Path, targets: tuple[str, ...]) -> None:
    """What is saved is read again, and merged, as PEFT merges it in memory."""
    section = TunerSection(kind="lora", dropout=0.0, targets=targets)
    model = apply_tuner(deepseek, section, seed=0, say=lambda _: None).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    expected = model(batch()).logits
    save_file(dict(canonical_weights(model)), tmp_path / "adapter_model.safetensors", metadata={"format": "pt"})
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter_config(model)))
    again = attach_adapter(tiny("deepseek-v3"), tmp_path, trainable=True)
    torch.testing.assert_close(again.eval()(batch()).logits, expected)
    assert adapted(again) == adapted(model)
    assert {type(module) for _, module in again.named_modules()} == {
        type(module) for _, module in model.named_modules()
    }
    if "experts" in targets:  # PEFT alone, which takes names of shared experts for the routed ones
        alone = PeftModel.from_pretrained(tiny("deepseek-v3"), tmp_path)
        torch.testing.assert_close(alone.eval()(batch()).logits, expected)
    write_architecture(tmp_path / "base", "deepseek-v3")
    source = open_source(ModelSection(path=str(tmp_path / "base")), say=lambda _: None)
    weights = dict(merged(source, dict(canonical_weights(model)), adapter_config(model) or {}))
    on_disk = source.build(dtype=torch.float32, weights=False)
    plain = tiny("deepseek-v3")
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            for piece in name_map(on_disk).pieces(name):
                piece.view_of(parameter).copy_(weights[piece.name])
    torch.testing.assert_close(plain.eval()(batch()).logits, expected, atol=1e-5, rtol=1e-4)


def test_an_expression_reaches_shared_experts(deepseek: Any) -> None:
    section = TunerSection(kind="lora", dropout=0.0, target_regex=r".*shared_experts\.(gate|up)_proj")
    model = apply_tuner(deepseek, section, seed=0, say=lambda _: None)
    where = "base_model.model.model.layers.1.mlp.shared_experts"
    assert adapted(model) == {f"{where}.gate_proj", f"{where}.up_proj"}


def test_names_without_a_dot_still_mean_the_experts(deepseek: Any) -> None:
    from peft import LoraConfig, get_peft_model

    with named_modules_kept():
        model = get_peft_model(
            deepseek, LoraConfig(target_modules=["gate_proj", "up_proj", "shared_experts.down_proj"])
        )
    names = {name.removeprefix("base_model.model.model.layers.") for name in adapted(model)}
    assert names == {"1.mlp.experts", "1.mlp.shared_experts.down_proj"}


def test_experts_that_peft_cannot_adapt_are_refused() -> None:
    """PEFT knows the stacked experts of some types alone, and would leave out those of others silently."""
    for targets, refused in ((("q_proj", "w1", "w3"), True), (("gate_proj", "up_proj"), False)):
        section = TunerSection(kind="lora", dropout=0.0, targets=targets)
        model = made(phimoe if refused else qwen2_moe)
        if refused:
            with pytest.raises(ConfigError, match="does not know the experts of phimoe models by w1 w3"):
                apply_tuner(model, section, seed=0, say=lambda _: None)
        else:
            names = adapted(apply_tuner(model, section, seed=0, say=lambda _: None))
            where = ("layers.0.mlp", "layers.1.mlp.shared_expert")
            assert names == {f"base_model.model.model.{each}.{name}" for each in where for name in targets}


def test_short_names_match_what_is_meant_and_no_more() -> None:
    wanted = ["a.0.mlp.up", "a.1.shared.up", "a.0.q", "a.1.q", "b.k"]
    others = ["a.1.experts.up", "a.0.k"]
    assert short_names(wanted, others) == ["b.k", "mlp.up", "q", "shared.up"]
    assert short_names(["a.up"], [], {"up"}) == ["a.up"]
    assert short_names(["h.0.q", "m.0"], ["h.1.q", "n.0"]) == ["h.0.q", "m.0"]


def test_tensor_parallel_refuses_adapters_on_experts(deepseek: Any) -> None:
    """Where a plan cuts experts, it cuts the tensors inside PEFT's wrapper, which adds whole products to them."""
    tensor_parallel_spec(with_experts(made(qwen2_moe)))  # whose experts stay whole
    tensor_parallel_spec(with_adapters(tiny("deepseek-v3")))
    with pytest.raises(UnsupportedLayout, match="with adapters on its stacked experts"):
        tensor_parallel_spec(with_experts(deepseek))

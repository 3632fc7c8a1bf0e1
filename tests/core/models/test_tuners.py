"""Tuners train what they say, from the same start everywhere, and QLoRA learns on weights of four bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tiny_models import batch, tiny, write_architecture

from swift.config.sections import ModelSection, TunerSection
from swift.errors import ConfigError, ModelError
from swift.models.build import meta_model
from swift.models.names import canonical_parameters
from swift.models.quantize import quantize_model
from swift.models.source import open_source
from swift.models.tuners import adapter_config, adapters_off, apply_tuner, weight_counts
from swift.plugins.tuner import tuner_of
from swift.terminal import summary_of

torch.set_num_threads(1)


def tuned(architecture: str = "qwen3", seed: int = 0, **options: object) -> torch.nn.Module:
    section = TunerSection(**{"kind": "lora", "dropout": 0.0, **options})
    return apply_tuner(tiny(architecture), section, seed=seed, say=lambda _: None)


def trained_names(model: torch.nn.Module) -> set[str]:
    return {p.name for pieces, parameter in canonical_parameters(model) for p in pieces if parameter.requires_grad}


def train(model: torch.nn.Module, steps: int = 8, lr: float = 1e-2) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    losses = []
    for _ in range(steps):
        loss = model(batch(), labels=batch()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def distance(model: torch.nn.Module, exact: torch.nn.Module) -> float:
    """Relative difference of the logits."""
    expected = exact(batch()).logits
    return ((model(batch()).logits - expected).norm() / expected.norm()).item()


def test_patterns_freeze_and_train_only_what_they_match() -> None:
    frozen = tuned(kind="full", freeze=("model.embed_tokens.*", "*.layers.0.*"))
    assert all("layers.0." not in name and "embed" not in name for name in trained_names(frozen))
    assert "model.layers.1.mlp.up_proj.weight" in trained_names(frozen)
    only = tuned(kind="full", train_only=("*.mlp.*",), freeze=("*.layers.1.*",))
    assert trained_names(only) == {f"model.layers.0.mlp.{m}_proj.weight" for m in ("gate", "up", "down")}


def test_experts_are_frozen_by_their_names_on_disk() -> None:
    frozen = tuned("qwen3-moe", kind="full", freeze=("model.layers.0.mlp.experts.*",))
    assert not frozen.model.layers[0].mlp.experts.gate_up_proj.requires_grad
    assert frozen.model.layers[1].mlp.experts.gate_up_proj.requires_grad
    with pytest.raises(ConfigError, match="freeze only some of the experts"):
        tuned("qwen3-moe", kind="full", freeze=("model.layers.0.mlp.experts.0.*",))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kind": "full", "freeze": ("model.embed_token.weight",)}, "Did you mean 'model.embed_tokens.weight'"),
        ({"kind": "full", "train_only": ("nothing*",)}, "no weight of this model matches"),
        ({"kind": "full", "freeze": ("*",)}, "Nothing is left to train"),
        ({"kind": "full", "quantize": "bnb-nf4"}, "full cannot train weights that tuner.quantize bnb-nf4 stores"),
        ({"targets": ("q_porj",)}, "Did you mean 'q_proj'"),
    ],
)
def test_a_tuner_that_cannot_be_meant_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        tuned(**options)


def test_stacked_experts_report_adapted_modules() -> None:
    said: list[str] = []
    model = apply_tuner(tiny("qwen3-moe"), TunerSection(), seed=0, say=said.append)
    assert all("self_attn" in name for name in trained_names(model))
    assert "adapters are attached to k_proj, o_proj, q_proj, v_proj" in said[0]
    with pytest.raises(ConfigError, match="dropout"):
        tuned("qwen3-moe", targets=("gate_proj", "up_proj", "down_proj"), dropout=0.1)


def test_before_training_an_adapter_changes_nothing() -> None:
    expected = tiny()(batch()).logits
    for options in ({}, {"dora": True}, {"rslora": True}, {"init": "gaussian"}):
        assert torch.allclose(tuned(**options)(batch()).logits, expected, atol=1e-5), options


def test_initial_adapters_depend_on_seed_and_name_alone() -> None:
    torch.manual_seed(5)
    one = dict(tuned(seed=1).named_parameters())
    torch.manual_seed(6)
    two, other = dict(tuned(seed=1).named_parameters()), dict(tuned(seed=2).named_parameters())
    name = "base_model.model.model.layers.1.mlp.up_proj.lora_A.default.weight"
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not torch.equal(one[name], other[name])
    assert not torch.equal(one[name], one[name.replace("layers.1", "layers.0")])
    fewer = dict(tuned(seed=1, targets=("up_proj",)).named_parameters())
    assert torch.equal(fewer[name], one[name])
    alone = tuner_of(TunerSection()).initial(name.replace(".default", ""), one[name].shape, 1)
    assert torch.equal(alone, one[name])


def test_attaching_an_adapter_leaves_the_random_state_alone() -> None:
    model = tiny()
    before = torch.get_rng_state()
    apply_tuner(model, TunerSection(), seed=0, say=lambda _: None)
    assert torch.equal(torch.get_rng_state(), before)


def test_initial_adapters_are_spread_as_peft_spreads_them() -> None:
    from peft import LoraConfig, get_peft_model

    for init in ("default", "gaussian"):
        weights = []
        for _ in range(2):
            linear = torch.nn.Sequential(torch.nn.Linear(512, 512))
            config = LoraConfig(r=64, target_modules=["0"], init_lora_weights=init == "default" or "gaussian")
            weights.append(get_peft_model(linear, config).base_model.model[0].lora_A.default.weight)
        ours = tuner_of(TunerSection(rank=64, init=init)).initial("x.lora_A.weight", (64, 512), 0)
        assert ours.std().item() == pytest.approx(weights[0].std().item(), rel=0.03)
        assert ours.abs().max().item() == pytest.approx(weights[0].abs().max().item(), rel=0.3)
        assert not tuner_of(TunerSection(rank=64)).initial("x.lora_B.weight", (512, 64), 0).any()


def peft_twin(architecture: str, **settings: object) -> torch.nn.Module:
    """PEFT's own model with these settings of its LoraConfig."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(**{"task_type": "CAUSAL_LM", "lora_alpha": 32, "target_modules": "all-linear", **settings})
    twin: torch.nn.Module = get_peft_model(tiny(architecture), config)
    return twin


@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_biases_are_trained_saved_and_merged_as_peft_does_it(bias: str, tmp_path: Path) -> None:
    from swift.models.load_adapter import attach_adapter
    from swift.models.merge import merged

    targets = ["q_proj", "o_proj", "up_proj"]
    model, twin = tuned("qwen2", bias=bias, targets=targets), peft_twin("qwen2", bias=bias, target_modules=targets)
    expected = {name for name, p in twin.named_parameters() if p.requires_grad and ".bias" in name}
    assert expected
    assert {name for name, p in model.named_parameters() if p.requires_grad and ".bias" in name} == expected
    train(model)
    model.eval()
    tensors = {name: p.detach().contiguous() for name, p in adapter_tensors(model).items()}
    (tmp_path / "adapter").mkdir()
    save_file(tensors, tmp_path / "adapter" / "adapter_model.safetensors")
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(adapter_config(model)))
    resumed = attach_adapter(tiny("qwen2"), tmp_path / "adapter", trainable=False).eval()
    assert distance(resumed, model) < 1e-6
    write_architecture(tmp_path / "base", "qwen2")
    source = open_source(ModelSection(path=str(tmp_path / "base")), say=lambda _: None)
    base = source.build(dtype=torch.float32)
    on_base = attach_adapter(base, tmp_path / "adapter", trainable=False).eval()
    expected_logits = on_base(batch()).logits
    plain = source.build(dtype=torch.float32)
    plain.load_state_dict(dict(merged(source, tensors, adapter_config(model) or {})), strict=False)
    assert torch.allclose(plain.eval()(batch()).logits, expected_logits, atol=1e-5)


def adapter_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {pieces[0].name: parameter for pieces, parameter in canonical_parameters(model)}


def test_ranks_and_scales_of_single_modules_are_those_of_peft() -> None:
    patterns = {"rank_pattern": {"q_proj": 4, "layers.1.mlp.up_proj": 2}, "alpha_pattern": {"v_proj": 3.0}}
    model, twin = tuned(**patterns), peft_twin("qwen3", r=8, **patterns)
    shapes = {name: p.shape for name, p in twin.named_parameters()}
    assert {name: p.shape for name, p in model.named_parameters()} == shapes
    for name, module in model.named_modules():
        if hasattr(module, "scaling"):
            assert module.scaling == twin.get_submodule(name).scaling
    assert adapter_config(model)["rank_pattern"] == patterns["rank_pattern"]


def test_regex_target_modules_match_peft() -> None:
    """An expression chooses the modules that PEFT would choose."""
    from peft import LoraConfig, get_peft_model

    expression = r".*\.0\..*\.(q|up)_proj"
    twin = get_peft_model(tiny(), LoraConfig(target_modules=expression))
    expected = {name for name, p in twin.named_parameters() if p.requires_grad}
    assert {n for n, p in tuned(target_regex=expression).named_parameters() if p.requires_grad} == expected
    with pytest.raises(ConfigError, match="matches no module") as refusal:
        tuned(target_regex=r"q_proj")
    assert "model.layers.0.self_attn.q_proj" in (refusal.value.hint or "")


def test_orthogonal_adapters_start_at_zero_as_peft() -> None:
    """Orthogonal adapters start from nothing and spread as in PEFT."""
    tuner = tuner_of(TunerSection(rank=32, init="orthogonal"))
    a = tuner.initial("x.lora_A.weight", (32, 512), 3)
    b = tuner.initial("x.lora_B.weight", (384, 32), 3)
    assert a.norm() > 0
    assert b.norm() > 0
    assert (b @ a).abs().max() < 1e-6
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=32, target_modules=["0"], init_lora_weights="orthogonal")
    layer = get_peft_model(torch.nn.Sequential(torch.nn.Linear(512, 384)), config).base_model.model[0]
    assert a.std().item() == pytest.approx(layer.lora_A.default.weight.std().item(), rel=0.1)
    assert b.std().item() == pytest.approx(layer.lora_B.default.weight.std().item(), rel=0.1)


def test_freeze_ratio_and_exceptions_match_ms_swift() -> None:
    """A share from below and exceptions are frozen as ms-swift does it."""
    model = tiny()
    counts = [(name, p.numel()) for name, p in model.named_parameters()]
    room, before, frozen = sum(n for _, n in counts) * 0.6, 0, set()
    for name, count in counts:
        before += count
        if before <= room:
            frozen.add(name)
    everything = {name for name, _ in counts}
    assert 0 < len(frozen) < len(everything)
    assert trained_names(tuned(kind="full", freeze_ratio=0.6)) == everything - frozen
    back = {"freeze_ratio": 1.0, "unfreeze": ("lm_head*",), "unfreeze_regex": r"layers\.1\..*norm"}
    expected = {"lm_head.weight", *(n for n in everything if "layers.1." in n and "norm" in n)}
    assert trained_names(tuned(kind="full", **back)) == expected
    without = trained_names(tuned(kind="full", freeze_regex=r"(q|k)_proj"))
    assert without == {name for name in everything if "q_proj" not in name and "k_proj" not in name}
    with pytest.raises(ConfigError, match="matches the name of no weight"):
        tuned(kind="full", freeze_regex="visual")


def test_adapters_are_fp32_on_a_frozen_base_in_bf16() -> None:
    model = apply_tuner(tiny().bfloat16(), TunerSection(modules_to_save=("lm_head",)), seed=0, say=lambda _: None)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}


def test_disabled_adapters_restore_base_model() -> None:
    """Switched off adapters give back the model before training."""
    model = tuned(modules_to_save=("lm_head",))
    model.eval()
    train(model, steps=3)
    trained, wanted = model(batch()).logits, {p for p in model.parameters() if p.requires_grad}
    with adapters_off(model):
        assert torch.allclose(model(batch()).logits, tiny()(batch()).logits, atol=1e-6)
        assert {p for p in model.parameters() if p.requires_grad} == wanted
    assert torch.equal(model(batch()).logits, trained)
    with pytest.raises(ModelError, match="needs the model without its adapter"), adapters_off(tiny()):
        pass


def test_an_adapter_goes_on_where_it_stopped(tmp_path: Path) -> None:
    model = tuned(rank=4, dora=True)
    train(model, steps=3)
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    section = TunerSection(adapter=tmp_path)
    again = apply_tuner(tiny(), section, seed=0, say=lambda _: None)
    model.eval()
    assert torch.allclose(again.eval()(batch()).logits, model(batch()).logits, atol=1e-6)
    assert trained_names(again) == trained_names(model)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors is missing"):
        apply_tuner(tiny(), section, seed=0, say=lambda _: None)


def test_the_summary_counts_weights() -> None:
    layer = torch.nn.Linear(1000, 1000, bias=False)
    layer.requires_grad_(False)
    model = torch.nn.Sequential(layer, torch.nn.Linear(1000, 300, bias=False))
    assert summary_of(*weight_counts(model)) == "300.0 k of 1.3 M weights (23 %)"


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A model whose matrices are whole blocks of torchao's NF4."""
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        bos_token_id=1,
        eos_token_id=2,
    )
    write_architecture(tmp_path)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "package"), [("bnb-nf4", "bitsandbytes"), ("bnb-int8", "bitsandbytes"), ("torchao-nf4", "torchao")]
)
def test_qlora_learns_on_a_frozen_quantised_base(wide: Path, kind: str, package: str) -> None:
    pytest.importorskip(package)
    source = open_source(ModelSection(path=str(wide)), say=lambda _: None)
    exact = source.build(dtype=torch.float32)
    section = TunerSection(quantize=kind, dropout=0.0)
    base = quantize_model(meta_model(source, torch.float32), source, section, "cpu")
    assert not any(parameter.requires_grad or parameter.is_meta for parameter in base.parameters())
    error = distance(base, exact)
    assert 0 < error < (0.3 if "nf4" in kind else 0.1)
    model = apply_tuner(base, section, seed=0, say=lambda _: None)
    whole = sum(p.numel() for p in (*exact.parameters(), *(p for p in model.parameters() if p.requires_grad)))
    assert f"of {whole / 1000:.1f} k weights" in summary_of(*weight_counts(model))
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    losses = train(model)
    assert losses[-1] < losses[0] - 0.3
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert "lora" in name
        elif type(parameter) is torch.nn.Parameter:
            assert torch.equal(parameter, frozen[name])
    with adapters_off(model):
        assert distance(model, exact) == pytest.approx(error, rel=1e-4)


@pytest.mark.parametrize(("kind", "double"), [("nf4", True), ("nf4", False), ("fp4", True)])
def test_weights_of_four_bits_are_those_of_bitsandbytes(wide: Path, kind: str, double: bool) -> None:
    functional = pytest.importorskip("bitsandbytes").functional
    source = open_source(ModelSection(path=str(wide)), say=lambda _: None)
    section = TunerSection(quantize=f"bnb-{kind}", double_quant=double)
    model = quantize_model(meta_model(source, torch.float32), source, section, "cpu")
    name = "model.layers.0.mlp.up_proj"
    packed, state = functional.quantize_4bit(source.read(f"{name}.weight"), compress_statistics=double, quant_type=kind)
    weight = model.get_submodule(name).weight
    assert weight.quant_state.nested == double
    found = functional.dequantize_4bit(weight.data, weight.quant_state)
    assert torch.equal(found, functional.dequantize_4bit(packed, state))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3-tied", "qwen3-moe", "deepseek-v3"])
def test_biases_ties_experts_and_buffers_survive_quantisation(architecture: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    write_architecture(tmp_path, architecture)
    source = open_source(ModelSection(path=str(tmp_path)), say=lambda _: None)
    base = quantize_model(meta_model(source, torch.float32), source, TunerSection(quantize="bnb-nf4"), "cpu")
    exact = dict(source.build(dtype=torch.float32).state_dict())
    kept = {name: tensor for name, tensor in base.state_dict().items() if name in exact and tensor.is_floating_point()}
    same = {name for name, tensor in kept.items() if tensor.shape == exact[name].shape}
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= same
    assert all(torch.equal(kept[name], exact[name]) for name in same)
    assert torch.isfinite(base(batch()).logits).all()
    assert distance(base, source.build(dtype=torch.float32)) < 0.6


@pytest.mark.parametrize(("kind", "package"), [("bnb-nf4", "bitsandbytes"), ("torchao-nf4", "torchao")])
def test_an_evaluation_leaves_a_quantised_model_as_it_was(wide: Path, kind: str, package: str) -> None:
    pytest.importorskip(package)
    source = open_source(ModelSection(path=str(wide)), say=lambda _: None)
    model = quantize_model(meta_model(source, torch.float32), source, TunerSection(quantize=kind), "cpu").train()
    before = model(batch()).logits
    with torch.no_grad():
        evaluated = model.eval()(batch()).logits
    after = model.train()(batch()).logits
    assert torch.equal(before, evaluated)
    assert torch.equal(before, after)


@pytest.mark.parametrize("kind", ["bnb-nf4", "torchao-nf4"])
def test_qlora_without_package_names_install(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_architecture(tmp_path)
    for module in ("bitsandbytes", "torchao.quantization.quantize_.workflows.nf4.nf4_tensor"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    source = open_source(ModelSection(path=str(tmp_path)), say=lambda _: None)
    with pytest.raises(ModelError, match=r"core\[qlora\]"):
        quantize_model(meta_model(source, torch.float32), source, TunerSection(quantize=kind), "cpu")

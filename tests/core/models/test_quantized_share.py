"""How much of a model QLoRA quantizes: counted on the modules that bitsandbytes and torchao have made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import write_architecture
from tiny_types import tiny_config, write_tiny
from transformers import AutoModelForCausalLM

from swift.config.sections import ModelSection, TunerSection
from swift.contracts import ModelFacts, QuantizedShare, Topology
from swift.errors import ConfigError
from swift.models.build import build_view, meta_model
from swift.models.quantize import quantize_model, quantized_share, stored_bytes
from swift.models.quantized_experts import PackedExperts
from swift.models.source import open_source
from swift.observers.facts import tuner
from swift.planning import planned_backends
from swift_testing.subjects import write_model

MIXTURE = QuantizedShare(1_000_000, 31_000_000, 29_000_000, 58_000_000, are_experts=True, dtype="bfloat16")


def _source(folder: Path, architecture: str) -> Any:
    write_architecture(folder, architecture)
    return open_source(ModelSection(path=str(folder)), say=lambda _: None)


@pytest.mark.parametrize("architecture", ["qwen3-moe", "deepseek-v3", "mixtral", "qwen3-tied", "gpt2"])
def test_share_counts_what_bitsandbytes_holds(architecture: str, tmp_path: Path) -> None:
    """Parameters that are packed are the quantized ones, whatever the rule that chose them."""
    bnb = pytest.importorskip("bitsandbytes")
    source = _source(tmp_path, architecture)
    share = quantized_share(meta_model(source, torch.bfloat16), torch.bfloat16)
    model = quantize_model(meta_model(source, torch.bfloat16), source, TunerSection(quantize="bnb-nf4"), "cpu")
    packed = [each.quant_state.shape for each in model.parameters() if isinstance(each, bnb.nn.Params4bit)]
    packed += [each.whole_shape for each in model.parameters() if isinstance(each, PackedExperts)]
    exact = sum(each.numel() for each in source.build(dtype=torch.float32).parameters())
    assert share.quantized == sum(each.numel() for each in packed)
    assert share.frozen == exact
    left = [each for name, each in model.named_parameters() if ".experts." in name and each.dtype == torch.bfloat16]
    assert all(isinstance(each, PackedExperts) for each in left)
    assert not share.are_experts
    assert share.left_bytes == 2 * share.left
    assert share.complete == (architecture != "gpt2")


def test_experts_that_are_no_stack_stay_and_are_named() -> None:
    """DBRX has all experts in one matrix, which its code reads from another module."""
    with torch.device("meta"):
        share = quantized_share(AutoModelForCausalLM.from_config(tiny_config("dbrx")), torch.bfloat16)
    assert share.are_experts
    assert not share.complete
    assert "the experts, 0.56 MiB, stay in bfloat16" in str(share)


@pytest.mark.parametrize("kind", ["bnb-nf4", "bnb-int8"])
def test_mixture_takes_a_third_of_its_bytes_in_bfloat16(kind: str, tmp_path: Path) -> None:
    """A mixture whose experts have the proportion of the weights that they have in models of 30 billion."""
    pytest.importorskip("bitsandbytes")
    shape = {"hidden_size": 128, "num_experts": 32, "moe_intermediate_size": 64, "num_hidden_layers": 4}
    write_model(tmp_path, architecture="Qwen3Moe", num_experts_per_tok=4, **shape)
    source = open_source(ModelSection(path=str(tmp_path)), say=lambda _: None)
    share = quantized_share(meta_model(source, torch.bfloat16), torch.bfloat16)
    model = quantize_model(meta_model(source, torch.bfloat16), source, TunerSection(quantize=kind), "cpu")
    assert share.quantized >= 0.9 * share.frozen
    assert bytes_of(model) <= (0.32 if kind == "bnb-nf4" else 0.56) * 2 * share.frozen


def bytes_of(model: torch.nn.Module) -> int:
    """Return the bytes of everything that a model keeps, scales included, each storage once."""
    tensors = [each for each in reachable(model) if isinstance(each, torch.Tensor)]
    storages = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in tensors}
    return sum(storages.values())


def reachable(model: torch.nn.Module) -> list[Any]:
    """Return what modules, parameters and the objects that hold scales refer to."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [model]
    while waiting:
        each = waiting.pop()
        if id(each) in found:
            continue
        found[id(each)] = each
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
        elif not isinstance(each, type) and type(each).__module__.startswith(("torch.nn", "transformers.models")):
            waiting += vars(each).values()
        elif type(each).__module__.startswith(("bitsandbytes.", "swift.")):
            waiting += getattr(each, "__dict__", {}).values()
    return list(found.values())


@pytest.mark.parametrize(
    ("kind", "double"), [("bnb-nf4", True), ("bnb-nf4", False), ("bnb-fp4", True), ("bnb-int8", True)]
)
def test_stored_bytes_are_those_of_bitsandbytes(kind: str, double: bool, tmp_path: Path) -> None:
    bnb = pytest.importorskip("bitsandbytes")
    source = _source(tmp_path, "llama")
    section = TunerSection(quantize=kind, double_quant=double)
    model = quantize_model(meta_model(source, torch.bfloat16), source, section, "cpu")
    for layer in (each for each in model.modules() if isinstance(each, bnb.nn.Linear4bit | bnb.nn.Linear8bitLt)):
        shape, weight = (layer.out_features, layer.in_features), layer.weight
        state = getattr(weight, "quant_state", None)
        if state is None:
            kept = [weight.data, weight.SCB]
        else:
            kept = [weight.data, state.absmax, *([state.state2.absmax] if double else [])]
        assert stored_bytes(shape, kind, double_quant=double) == sum(each.nbytes for each in kept)


def test_stored_bytes_are_those_of_torchao() -> None:
    nf4 = pytest.importorskip("torchao.quantization.quantize_.workflows.nf4.nf4_tensor")
    packed = nf4.to_nf4(torch.randn(256, 256), block_size=64, scaler_block_size=256)
    kept = (packed.quantized_data, packed.quantized_scalers, packed.quantization_factor)
    assert stored_bytes((256, 256), "torchao-nf4", double_quant=True) == sum(each.nbytes for each in kept)


@pytest.mark.parametrize(("strict", "architecture"), [("true", "dbrx"), ("false", "dbrx"), ("true", "qwen3_moe")])
def test_strict_refuses_experts_that_stay_whole(
    strict: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a weight is read; and what is built without it carries the share."""
    pytest.importorskip("bitsandbytes")
    source = open_source(ModelSection(path=str(write_tiny(architecture, tmp_path))), say=lambda _: None)
    words = ["--model", str(tmp_path), "--backend", "torch", "--train_type", "qlora", "--strict", strict]
    requested = planned_backends([*words, "--torch_dtype", "float32"], "sft")[0][0].run({}, 1)
    run = requested.opened(Topology(requested.world, 0, 1)).prepared(0, lambda _: 0.0)
    if strict == "true" and architecture == "dbrx":
        monkeypatch.setattr(source, "read", None)
        with pytest.raises(ConfigError, match=r"data\.strict true refuses: .*the experts, .* MiB, stay in float32"):
            build_view(run, source)
        return
    build_view(run, source)
    assert run.facts.model is not None
    assert run.facts.model.quantized is not None
    assert run.facts.model.quantized.complete == (architecture == "qwen3_moe")


def test_header_names_the_experts_that_stay_whole() -> None:
    run = planned_backends(["--model", "x", "--backend", "torch", "--train_type", "qlora"], "sft")[0][0].run({}, 1)
    run.facts.model = ModelFacts("bfloat16", parameters=31_100_000, trainable=100_000, quantized=MIXTURE)
    sentence = "bnb-nf4: 3 % of the frozen weights; the experts, 55 MiB, stay in bfloat16"
    assert tuner(run) == f"lora, rank 8, alpha 32, on all-linear, {sentence}"


def test_header_of_a_dense_model_gives_the_share() -> None:
    dense = QuantizedShare(7_000_000_000, 8_000_000_000, 0, 0, are_experts=False, dtype="bfloat16")
    assert str(dense) == "88 % of the frozen weights"

"""How much of a model QLoRA quantizes: counted on the modules that bitsandbytes and torchao have made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import write_architecture

from swift.config.sections import ModelSection, TunerSection
from swift.contracts import ModelFacts, QuantizedShare, Topology
from swift.errors import ConfigError
from swift.models.build import build_view, meta_model
from swift.models.quantize import quantize_model, quantized_share, stored_bytes
from swift.models.source import open_source
from swift.observers.facts import tuner
from swift.planning import planned_backends

MIXTURE = QuantizedShare(1_000_000, 31_000_000, 29_000_000, 58_000_000, are_experts=True, dtype="bfloat16")


def _source(folder: Path, architecture: str) -> Any:
    write_architecture(folder, architecture)
    return open_source(ModelSection(path=str(folder)), say=lambda _: None)


@pytest.mark.parametrize("architecture", ["qwen3-moe", "deepseek-v3", "mixtral", "qwen3-tied", "gpt2"])
def test_share_counts_what_bitsandbytes_holds(architecture: str, tmp_path: Path) -> None:
    """Parameters of the class Params4bit are the quantized ones, whatever the rule that chose them."""
    bnb = pytest.importorskip("bitsandbytes")
    source = _source(tmp_path, architecture)
    share = quantized_share(meta_model(source, torch.bfloat16), torch.bfloat16)
    model = quantize_model(meta_model(source, torch.bfloat16), source, TunerSection(quantize="bnb-nf4"), "cpu")
    packed = [each for each in model.parameters() if isinstance(each, bnb.nn.Params4bit)]
    exact = sum(each.numel() for each in source.build(dtype=torch.float32).parameters())
    assert share.quantized == sum(each.quant_state.shape.numel() for each in packed)
    assert share.frozen == exact
    experts = [each for name, each in model.named_parameters() if ".experts." in name]
    assert share.are_experts == bool(experts)
    assert share.left >= sum(each.numel() for each in experts)
    assert share.left_bytes == 2 * share.left
    assert share.complete == (architecture == "qwen3-tied")


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


@pytest.mark.parametrize(("strict", "architecture"), [("true", "qwen3-moe"), ("false", "qwen3-moe"), ("true", "qwen3")])
def test_strict_refuses_experts_that_stay_whole(
    strict: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a weight is read; and what is built without it carries the share."""
    pytest.importorskip("bitsandbytes")
    source = _source(tmp_path, architecture)
    words = ["--model", str(tmp_path), "--backend", "torch", "--train_type", "qlora", "--strict", strict]
    requested = planned_backends([*words, "--torch_dtype", "float32"], "sft")[0][0].run({}, 1)
    run = requested.opened(Topology(requested.world, 0, 1)).prepared(0, lambda _: 0.0)
    if strict == "true" and architecture == "qwen3-moe":
        monkeypatch.setattr(source, "read", None)
        with pytest.raises(ConfigError, match=r"data\.strict true refuses: .*the experts, .* MiB, stay in float32"):
            build_view(run, source)
        return
    build_view(run, source)
    assert run.facts.model is not None
    assert run.facts.model.quantized is not None
    assert run.facts.model.quantized.complete == (architecture == "qwen3")


def test_header_names_the_experts_that_stay_whole() -> None:
    run = planned_backends(["--model", "x", "--backend", "torch", "--train_type", "qlora"], "sft")[0][0].run({}, 1)
    run.facts.model = ModelFacts("bfloat16", parameters=31_100_000, trainable=100_000, quantized=MIXTURE)
    sentence = "bnb-nf4: 3 % of the frozen weights; the experts, 55 MiB, stay in bfloat16"
    assert tuner(run) == f"lora, rank 8, alpha 32, on all-linear, {sentence}"


def test_header_of_a_dense_model_gives_the_share() -> None:
    dense = QuantizedShare(7_000_000_000, 8_000_000_000, 0, 0, are_experts=False, dtype="bfloat16")
    assert str(dense) == "88 % of the frozen weights"

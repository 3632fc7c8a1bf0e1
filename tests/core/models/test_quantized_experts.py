"""Experts in 4 and 8 bits compute as a plain transformers model does that has the dequantized weights."""

from __future__ import annotations

import copy
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import conversations, run_training
from tiny_types import write_tiny
from transformers import AutoModelForCausalLM

from swift.config.sections import ModelSection, TunerSection
from swift.contracts import Topology
from swift.export.destination import VERIFICATION
from swift.models import quantized_experts
from swift.models.build import meta_model
from swift.models.low_bit import as_trained
from swift.models.names import name_map
from swift.models.quantize import quantize_model, weights_to_quantise
from swift.models.quantized_experts import code_replaced, dense_experts, packed_experts
from swift.models.quiet import without_bitsandbytes
from swift.models.source import open_source
from swift.planning import planned_backends

bitsandbytes = pytest.importorskip("bitsandbytes")
functional = bitsandbytes.functional

IDS = torch.arange(7, 71)[None]
KINDS = ("bnb-nf4", "bnb-fp4", "bnb-int8")
IMPLEMENTATIONS = ("eager", "grouped_mm", "batched_mm")


def rounded(weight: torch.Tensor, kind: str) -> torch.Tensor:
    """Return a weight as bitsandbytes keeps it, by its own functions or, of 8 bits, by their definition."""
    if kind == "bnb-int8":
        rows = weight.half().float()
        largest = rows.abs().amax(-1, keepdim=True)
        return (rows * (127 / largest)).round() * largest / 127
    packed, state = functional.quantize_4bit(weight, compress_statistics=True, quant_type=kind.removeprefix("bnb-"))
    dense: torch.Tensor = functional.dequantize_4bit(packed, state)
    return dense


def pair(name: str, folder: Path, kind: str) -> tuple[Any, Any]:
    """Return a quantised model, and the plain one with the same weights: experts alone, or all of 4 bits."""
    source = open_source(ModelSection(path=str(write_tiny(name, folder))), say=lambda _: None)
    skeleton = meta_model(source, torch.float32)
    chosen = weights_to_quantise(skeleton)
    quantised = quantize_model(skeleton, source, TunerSection(quantize=kind), "cpu")
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for path in chosen:
            weight = plain.get_parameter(path)
            weight.copy_(rounded(weight, kind))
    if kind == "bnb-int8":  # whose linear layers round what they read, too: compared are the experts
        for path, module in list(plain.named_modules()):
            if type(module) is torch.nn.Linear and f"{path}.weight" in chosen:
                quantised.set_submodule(path, copy.deepcopy(module))
    return quantised.train(), plain.train().requires_grad_(False)


def step(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss, and the gradient of what goes into the first layer."""
    embedded = model.get_input_embeddings()(IDS).detach().requires_grad_()
    loss = model(inputs_embeds=embedded, labels=IDS, use_cache=False).loss
    loss.backward()
    assert embedded.grad is not None
    return loss.detach(), embedded.grad


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_numbers_are_those_of_dequantized_weights(name: str, kind: str, tmp_path: Path) -> None:
    """By each of transformers' ways to compute experts, with and without recomputed layers; gpt-oss has biases."""
    quantised, plain = pair(name, tmp_path, kind)
    assert sum(hasattr(module, "expert_scales") for module in quantised.modules()) == 4
    for implementation in IMPLEMENTATIONS:
        for model in (quantised, plain):
            model.config._experts_implementation = implementation
        loss, gradient = step(plain)
        for recompute in (False, True):
            if recompute:
                quantised.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            found, its_gradient = step(quantised)
            torch.testing.assert_close(found, loss, rtol=1e-5, atol=0)
            torch.testing.assert_close(its_gradient, gradient, rtol=1e-4, atol=1e-4 * float(gradient.abs().max()))
        quantised.gradient_checkpointing_disable()


@pytest.mark.parametrize(("name", "layer"), [("jamba", "dt_proj"), ("longcat_flash", "classifier")])
def test_weights_that_code_reads_are_left_whole(name: str, layer: str, tmp_path: Path) -> None:
    """The mixer of Jamba and the router of LongCat multiply with `self.LAYER.weight` themselves."""
    quantised, plain = pair(name, tmp_path, "bnb-nf4")
    assert all(type(module) is torch.nn.Linear for path, module in quantised.named_modules() if path.endswith(layer))
    (loss, gradient), (found, its_gradient) = step(plain), step(quantised)
    torch.testing.assert_close(found, loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(its_gradient, gradient, rtol=1e-4, atol=1e-4 * float(gradient.abs().max()))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:2])
def test_no_weight_stays_dense_between_passes(
    implementation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most the two of one layer are dense at any time, of eight: neither autograd nor a module keeps one."""
    quantised, _ = pair("qwen3_moe", tmp_path, "bnb-nf4")
    quantised.config._experts_implementation = implementation
    made: list[weakref.ref[torch.Tensor]] = []
    most: list[int] = []

    def counted(module: Any, name: str) -> torch.Tensor:
        dense = dense_experts(module, name)
        made.append(weakref.ref(dense.untyped_storage()))
        most.append(alive())
        return dense

    def alive() -> int:
        return sum(each() is not None for each in made)

    monkeypatch.setattr(quantized_experts, "dense_experts", counted)
    gc.disable()  # what a cycle held would be freed by chance
    try:
        embedded = quantised.get_input_embeddings()(IDS).detach().requires_grad_()
        loss = quantised(inputs_embeds=embedded, labels=IDS, use_cache=False).loss
        assert len(made) == 8
        assert alive() == 0
        loss.backward()
        assert len(made) == 16
        assert alive() == 0
        assert max(most) == 2
    finally:
        gc.enable()


def test_experts_are_quantised_in_runs_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has more values than kernels can count is quantised a few experts at a time, with the same values."""
    weight = torch.randn(5, 16, 64)
    for kind in ("bnb-nf4", "bnb-int8"):
        section = TunerSection(quantize=kind, double_quant=False)
        whole, scales = packed_experts(weight, section, bitsandbytes)
        with monkeypatch.context() as patched:
            patched.setattr(quantized_experts, "_MOST", 2 * 16 * 64)
            cut, scales_of_runs = packed_experts(weight, section, bitsandbytes)
        assert len(getattr(scales_of_runs, "states", [1, 2, 3])) == 3
        assert torch.equal(whole.data, cut.data)
        assert torch.equal(scales.dense(whole.data), scales_of_runs.dense(cut.data))


def test_adapters_on_packed_experts_are_those_of_dense_ones(tmp_path: Path) -> None:
    """PEFT adds its update of each expert to the dequantized weight; gradients of A and B are the same."""
    quantised, plain = pair("qwen3_moe", tmp_path, "bnb-nf4")
    with without_bitsandbytes():
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=2, lora_dropout=0.0, target_parameters=["experts.gate_up_proj", "experts.down_proj"],
                            target_modules=["q_proj"])  # fmt: skip
        tuned = [get_peft_model(each, copy.deepcopy(config)) for each in (quantised, plain)]
    for (name, ours), theirs in zip(tuned[0].named_parameters(), tuned[1].parameters(), strict=True):
        if "lora_" in name:
            with torch.no_grad():
                theirs.copy_(torch.randn(theirs.shape) * 0.1)
                ours.copy_(theirs)
    found, expected = ([step(each), dict(each.named_parameters())] for each in tuned)
    torch.testing.assert_close(found[0][0], expected[0][0], rtol=1e-5, atol=0)
    trained = [name for name in found[1] if "lora_" in name]
    assert len([name for name in trained if "experts" in name]) == 16
    for name in trained:
        gradient = expected[1][name].grad
        torch.testing.assert_close(found[1][name].grad, gradient, rtol=1e-4, atol=1e-4 * float(gradient.abs().max()))


def test_replaced_code_computes_with_dense_experts(tmp_path: Path) -> None:
    """Liger puts code of its own into modules, which must not multiply with packed values."""
    quantised, _ = pair("qwen3_moe", tmp_path, "bnb-nf4")
    module = quantised.model.layers[0].mlp.experts
    with code_replaced(quantised):
        module.forward = lambda: module.gate_up_proj
    assert torch.equal(module.forward(), dense_experts(module, "gate_up_proj"))
    assert module.forward().shape == (4, 64, 64)


def test_engines_are_sent_the_experts_that_are_trained_on(tmp_path: Path) -> None:
    """Tensor by tensor as on disk, of which each is read once: experts of a layer share two weights."""
    source: Any = open_source(ModelSection(path=str(write_tiny("qwen3_moe", tmp_path))), say=lambda _: None)
    words = ["--model", str(tmp_path), "--backend", "torch", "--train_type", "qlora", "--torch_dtype", "float32"]
    requested = planned_backends(words, "sft")[0][0].run({}, 1)
    run = requested.opened(Topology(requested.world, 0, 1)).prepared(0, lambda _: 0.0)
    quantised = quantize_model(meta_model(source, torch.float32), source, run.config.tuner, "cpu")
    names, read, read_one = name_map(quantised), [], source.read
    source.read = lambda name: read.append(name) or read_one(name)
    sent = as_trained(source, run)
    for name in source.names():
        tensor = sent.read(name)
        owner, piece = names.owner(name)
        path, _, leaf = owner.rpartition(".")
        if ".experts." in name:
            assert torch.equal(tensor, piece.view_of(dense_experts(quantised.get_submodule(path), leaf)))
            assert not torch.equal(tensor, read_one(name))
    assert sorted(read) == sorted(source.names())


def test_exports_have_the_experts_of_the_files(tmp_path: Path) -> None:
    """Adapters on attention are merged into the weights on disk; experts are written with the bits that they had."""
    model, out = write_tiny("qwen3_moe", tmp_path / "model"), tmp_path / "out"
    settings = {
        "tuner.kind": "lora", "tuner.dropout": 0.0, "tuner.quantize": "bnb-nf4", "train.max_steps": 2,
        "train.global_batch": 4, "optim.lr": 1e-2, "optim.warmup_steps": 0, "export.to": "hf", "export.out": str(out),
    }  # fmt: skip
    run_training(model, tmp_path / "runs", conversations(8), settings)
    before, after = (load_file(folder / "model.safetensors") for folder in (model, out))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before if ".experts." in name)
    assert not torch.equal(before["model.layers.0.self_attn.q_proj.weight"],
                           after["model.layers.0.self_attn.q_proj.weight"])  # fmt: skip
    assert json.loads((out / VERIFICATION).read_text())["verified"]

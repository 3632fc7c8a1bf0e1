"""Merging one weight at a time gives what PEFT's own merge of the whole model gives."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from tiny import logits, tiny_model
from transformers import AutoModelForCausalLM

from swift.config.sections import ModelSection
from swift.errors import ExportError
from swift.models.merge import merged
from swift.models.source import open_source

LINEAR = ["q_proj", "v_proj", "up_proj", "down_proj"]


def trained_adapter(folder: Path, settings: dict[str, Any]) -> tuple[Any, dict[str, torch.Tensor], dict[str, Any]]:
    """A PEFT model whose every adapter weight was moved, its tensors as PEFT saves them, and its configuration."""
    torch.manual_seed(5)
    base = AutoModelForCausalLM.from_pretrained(folder)
    model = get_peft_model(base, LoraConfig(**{"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM", **settings}))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "magnitude" in name:
            parameter.data.mul_(1 + 0.2 * torch.rand_like(parameter))
        elif parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.05)
    state = {name: tensor.detach().clone() for name, tensor in get_peft_model_state_dict(model).items()}
    if settings.get("bias") == "lora_only":  # PEFT 0.20 trains these, and leaves them out of what it saves
        state |= {
            name: parameter.detach().clone()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and name.endswith(".base_layer.bias")
        }
    return model, state, model.peft_config["default"].to_dict()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("qwen3", {"target_modules": LINEAR}),
        ("qwen3", {"target_modules": LINEAR, "use_rslora": True}),
        ("qwen3", {"target_modules": LINEAR, "use_dora": True}),
        ("qwen3", {"target_modules": LINEAR, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.*v_proj": 20}}),
        ("qwen3", {"target_modules": LINEAR, "modules_to_save": ["lm_head", "embed_tokens"]}),
        ("qwen3", {"target_modules": ["embed_tokens", "q_proj"]}),
        ("qwen3", {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True}),
        ("qwen3", {"target_modules": LINEAR, "init_lora_weights": "pissa"}),
        ("qwen3", {"target_modules": LINEAR, "init_lora_weights": "olora", "use_rslora": True}),
        ("qwen3", {"target_modules": LINEAR, "init_lora_weights": "gaussian"}),
        ("qwen2", {"target_modules": ["q_proj", "k_proj"], "bias": "all"}),
        ("qwen2", {"target_modules": ["q_proj", "k_proj"], "bias": "lora_only"}),
        ("qwen2", {"target_modules": ["q_proj", "k_proj"], "lora_bias": True}),
        ("gpt2", {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}),
        ("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "use_dora": True}),
    ],
    ids=[
        "lora",
        "rslora",
        "dora",
        "patterns",
        "modules_to_save",
        "embedding",
        "embedding-dora",
        "pissa",
        "olora-rslora",
        "gaussian",
        "bias-all",
        "bias-lora_only",
        "lora_bias",
        "conv1d",
        "conv1d-dora",
    ],
)
def test_merging_equals_peft(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    folder = tiny_model(tmp_path / "base", kind)
    model, adapters, config = trained_adapter(folder, settings)
    source = open_source(ModelSection(path=str(folder)), say=lambda _: None)
    ours = dict(merged(source, adapters, config))
    assert list(ours) == source.names()

    before = logits(model)
    reference = copy.deepcopy(model).merge_and_unload()
    theirs = reference.state_dict()
    changed = 0
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")
        changed += not torch.equal(tensor, source.read(name))
    assert changed > 1
    reference.load_state_dict(ours, strict=False)
    torch.testing.assert_close(logits(reference), before, rtol=1e-4, atol=1e-4)


def test_adapter_merge_on_tied_embeddings_is_refused(tmp_path: Path) -> None:
    """An adapter on tied embeddings is refused because it would change the output."""
    folder = tiny_model(tmp_path / "base", tie_word_embeddings=True)
    source = open_source(ModelSection(path=str(folder)), say=lambda _: None)
    for settings in (
        {"target_modules": ["embed_tokens"]},
        {"target_modules": LINEAR, "modules_to_save": ["embed_tokens"]},
    ):
        _, adapters, config = trained_adapter(folder, settings)
        with pytest.raises(ExportError, match=r"embed_tokens\.weight, which this model ties between input and"):
            merged(source, adapters, config)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peft_type": "ADALORA"}, "ADALORA adapters cannot be merged"),
        ({"init_lora_weights": "corda"}, "init_lora_weights=corda"),
        ({"target_parameters": ["mlp.experts"]}, "target_parameters"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
    ],
)
def test_what_cannot_be_merged_is_refused_by_name(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    source = open_source(ModelSection(path=str(tiny_model(tmp_path / "base"))), say=lambda _: None)
    with pytest.raises(ExportError, match=said) as caught:
        merged(source, {}, {"peft_type": "LORA", "lora_alpha": 8, **change})
    assert "--to adapter" in (caught.value.hint or "")


def test_a_tensor_that_belongs_to_no_weight_is_named(tmp_path: Path) -> None:
    source = open_source(ModelSection(path=str(tiny_model(tmp_path / "base"))), say=lambda _: None)
    with pytest.raises(ExportError, match=r"no weight model\.nowhere\.weight"):
        merged(
            source,
            {"base_model.model.model.nowhere.lora_A.weight": torch.zeros(2, 2)},
            {"peft_type": "LORA", "lora_alpha": 8},
        )

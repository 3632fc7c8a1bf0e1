"""Groups and optimizers: what decays, and what learns faster."""

from __future__ import annotations

import pytest
import torch
import transformers

from swift.config.sections import OptimSection, TunerSection
from swift.errors import ConfigError
from swift.models.tuners import apply_tuner
from swift.optim.build import build_optimizer, parameter_groups, set_learning_rate

torch.set_num_threads(1)


def gpt2() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=1, eos_token_id=2
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def test_weight_decay_falls_on_matrices_and_embeddings_alone() -> None:
    model = gpt2()
    groups = parameter_groups(model.named_parameters(), OptimSection(weight_decay=0.1), TunerSection(kind="full"))
    decays = {name: group["weight_decay"] for group in groups for name in group["names"]}
    assert set(decays) == {name for name, _ in model.named_parameters()}
    assert decays["transformer.wte.weight"] == decays["transformer.h.0.attn.c_attn.weight"] == 0.1
    assert decays["transformer.h.0.attn.c_attn.bias"] == decays["transformer.ln_f.weight"] == 0.0


def test_frozen_weights_are_in_no_group() -> None:
    model = gpt2()
    model.transformer.wte.weight.requires_grad_(False)
    groups = parameter_groups(model.named_parameters(), OptimSection(), TunerSection(kind="full"))
    assert all("transformer.wte.weight" not in group["names"] for group in groups)


def test_lora_plus_scales_lr_of_b_through_schedule() -> None:
    """LoRA+ lets b learn faster through the whole schedule."""
    tuner = TunerSection(lora_plus_ratio=16.0)
    model = apply_tuner(gpt2(), tuner, seed=0, say=lambda _: None)
    groups = parameter_groups(model.named_parameters(), OptimSection(), tuner)
    assert {g["lr_scale"]: {"lora_B" in n for n in g["names"]} for g in groups} == {1.0: {False}, 16.0: {True}}
    optimizer = build_optimizer(groups, OptimSection(), 1e-4, "cpu")
    assert sorted(group["lr"] for group in optimizer.param_groups) == pytest.approx([1e-4, 16e-4])
    set_learning_rate(optimizer, 5e-5)
    assert sorted(group["lr"] for group in optimizer.param_groups) == pytest.approx([5e-5, 8e-4])


def test_adamw_is_fused_on_the_cpu() -> None:
    groups = parameter_groups(gpt2().named_parameters(), OptimSection(), TunerSection(kind="full"))
    assert build_optimizer(groups, OptimSection(), 1e-3, "cpu").defaults["fused"] is True


def test_eight_bit_adam_without_package_names_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    groups = parameter_groups(gpt2().named_parameters(), OptimSection(), TunerSection(kind="full"))
    with pytest.raises(ConfigError, match=r"core\[qlora\]"):
        build_optimizer(groups, OptimSection(name="adamw_8bit"), 1e-3, "cpu")

"""Groups and optimizers: what decays, what learns faster, and that a step is torch's."""

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


def test_a_step_of_adamw_is_that_of_the_papers_formula() -> None:
    weight = torch.nn.Parameter(torch.tensor([[1.0, -2.0]]))
    bias = torch.nn.Parameter(torch.tensor([0.5]))
    optim = OptimSection(weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8)
    groups = parameter_groups([("weight", weight), ("bias", bias)], optim, TunerSection(kind="full"))
    optimizer = build_optimizer(groups, optim, 0.01, "cpu")
    weight.grad, bias.grad = torch.tensor([[0.3, -0.4]]), torch.tensor([0.2])
    optimizer.step()
    # First step: both bias-corrected moments are the gradient and its square, so the update is its sign.
    assert torch.allclose(weight, torch.tensor([[1.0 * (1 - 0.001) - 0.01, -2.0 * (1 - 0.001) + 0.01]]))
    assert torch.allclose(bias, torch.tensor([0.49]))


def test_adamw_is_fused_on_the_cpu() -> None:
    groups = parameter_groups(gpt2().named_parameters(), OptimSection(), TunerSection(kind="full"))
    assert build_optimizer(groups, OptimSection(), 1e-3, "cpu").defaults["fused"] is True


@pytest.mark.parametrize(("name", "lr"), [("adamw", 1e-2), ("adafactor", 0.3)])
def test_the_loss_falls(name: str, lr: float) -> None:
    model, optim = gpt2(), OptimSection(name=name)
    groups = parameter_groups(model.named_parameters(), optim, TunerSection(kind="full"))
    optimizer = build_optimizer(groups, optim, lr, "cpu")
    ids = torch.arange(16).view(1, 16)
    losses = []
    for _ in range(10):
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5


def test_eight_bit_adam_without_package_names_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    groups = parameter_groups(gpt2().named_parameters(), OptimSection(), TunerSection(kind="full"))
    with pytest.raises(ConfigError, match=r"swift-core\[qlora\]"):
        build_optimizer(groups, OptimSection(name="adamw_8bit"), 1e-3, "cpu")

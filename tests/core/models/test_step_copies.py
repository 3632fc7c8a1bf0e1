"""Weights that are cast once a step, and gradients added where they are kept: the same numbers as autocast."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_runs import Trained, conversations, run_training
from torch import nn
from torch.utils.checkpoint import checkpoint

from swift.models.step_copies import CopyingLinear, use_copies, weights_cast_once

MICRO_BATCHES = 3


class Block(nn.Module):
    """Three layers, one with a bias, and one that shares its input with another."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.gate, self.up, self.down = nn.Linear(64, 96), nn.Linear(64, 96, bias=False), nn.Linear(96, 64, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        normed = self.norm(states)
        down: torch.Tensor = self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))
        return states + down


def two_blocks(*, fp8: bool = False, norms: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    for block in model:
        block.norm.requires_grad_(norms)
    if fp8:
        ao = pytest.importorskip("torchao.float8")
        gradient = ao.CastConfig(target_dtype=torch.float8_e5m2)
        ao.convert_to_float8_training(
            model, config=ao.Float8LinearConfig(cast_config_grad_output=gradient, emulate=True)
        )
    return model


def gradients(model: nn.Sequential, *, again: bool = False, fp8: bool = False, asked: bool = True) -> dict[str, Any]:
    """Return the gradients of a step of some micro-batches; `again` computes blocks again in the backward pass."""
    for seed in range(MICRO_BATCHES):
        states = torch.randn(2, 48, 64, generator=torch.Generator().manual_seed(seed)).requires_grad_(asked)
        with torch.autocast("cpu", torch.bfloat16, enabled=not fp8):  # which torchao's layers do not know on a CPU
            for block in model:
                states = checkpoint(block, states, use_reentrant=False) if again else block(states)
        states.float().square().mean().backward()  # type: ignore[no-untyped-call]  # torch's
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("again", [False, True], ids=["once", "computed again"])
def test_gradients_are_those_of_autocast_bit_for_bit(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, model = gradients(two_blocks(), again=again), two_blocks()
    use_copies(model)
    monkeypatch.delattr(nn.Linear, "forward")  # which casts the weight each time
    with weights_cast_once(model, torch.bfloat16):
        found = gradients(model, again=again)
    assert sum(isinstance(module, CopyingLinear) for module in model.modules()) == 6
    assert list(found) == list(expected)
    for name, gradient in found.items():
        assert torch.equal(gradient, expected[name]), name


def test_gradients_in_fp8_are_those_of_torchaos_layers() -> None:
    expected, model = gradients(two_blocks(fp8=True), fp8=True), two_blocks(fp8=True)
    use_copies(model)
    with weights_cast_once(model, torch.float32):
        found = gradients(model, fp8=True)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


def test_weights_that_are_frozen_get_no_gradient() -> None:
    model = two_blocks()
    use_copies(model)
    model[0].up.weight.requires_grad_(False)
    with weights_cast_once(model, torch.bfloat16):
        found = gradients(model)
    assert [name for name, gradient in found.items() if gradient is None] == ["0.up.weight"]


def test_gradient_hooks_run_with_weight_copies() -> None:
    model = two_blocks()
    use_copies(model)
    told: list[str] = []
    weights = {"tensor": model[0].up.weight, "parameter": model[1].down.weight}
    weights["tensor"].register_hook(lambda gradient: told.append("tensor"))
    weights["parameter"].register_post_accumulate_grad_hook(lambda weight: told.append("parameter"))
    with weights_cast_once(model, torch.bfloat16):
        gradients(model)
    assert sorted(told) == ["parameter"] * MICRO_BATCHES + ["tensor"] * MICRO_BATCHES


@pytest.mark.full
@pytest.mark.parametrize(("fp8", "asked"), [(True, True), (False, False)], ids=["fp8", "bf16, of the first"])
def test_compiled_layers_add_up_the_same(fp8: bool, asked: bool) -> None:
    """Those of the first block too, where nobody asks for the gradient of what they are given."""
    expected = gradients(two_blocks(fp8=fp8, norms=asked), fp8=fp8, asked=asked)
    model = two_blocks(fp8=fp8, norms=asked)
    use_copies(model)
    for block in model:
        block.compile()
    with weights_cast_once(model, torch.float32 if fp8 else torch.bfloat16):
        found = gradients(model, fp8=fp8, asked=asked)
    for name, gradient in found.items():
        if expected[name] is None:
            assert gradient is None
        else:
            assert (gradient - expected[name]).norm() < 0.01 * expected[name].norm(), name


def test_a_run_casts_each_weight_once_a_step_and_learns_the_same(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    casts: list[nn.Module] = []
    make = CopyingLinear.make_copy

    def counted(layer: CopyingLinear, precision: torch.dtype) -> torch.Tensor:
        casts.append(layer)
        return make(layer, precision)

    def trained(name: str) -> Trained:
        more = {"model.dtype": "bfloat16", "train.max_steps": 3, "train.micro_batch": 1, "logging.run_name": name}
        return run_training(tiny, tmp_path, conversations(16), more)

    monkeypatch.setattr(CopyingLinear, "make_copy", counted)
    run = trained("copies")
    layers = {id(layer) for layer in casts}
    assert len(casts) == 3 * len(layers) > 0
    assert all(layer.copy is None for layer in casts)
    casts.clear()
    monkeypatch.setattr("swift.backends.torch.shard.use_copies", lambda blocks: nullcontext())
    plain = trained("plain")
    assert not casts
    assert run.losses == plain.losses
    assert run.grad_norms == plain.grad_norms


def test_a_kernel_that_rounds_wrongly_is_found_out_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchao.float8")
    from swift.models import fp8_linear

    def encode(matrix: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, ...]:
        along, across, factor = fp8_linear._by_operators(matrix, kind)
        calls.append(matrix.shape)
        return along, across.flip(0) if wrong else across, factor

    calls: list[torch.Size] = []
    monkeypatch.setitem(sys.modules, "swift.kernels.fp8", SimpleNamespace(encode=encode))
    monkeypatch.setattr(fp8_linear, "kernels_for", lambda tensor: True)
    monkeypatch.setattr(fp8_linear, "_compiled_operators", lambda: fp8_linear._by_operators)
    matrix, kind = torch.randn(32, 48), torch.float8_e4m3fn
    expected = fp8_linear._by_operators(matrix, kind)
    for wrong in (True, False):
        fp8_linear._kernel_is_right.cache_clear()
        calls.clear()
        with pytest.warns(UserWarning, match="incorrectly on this GPU") if wrong else nullcontext():
            found = [fp8_linear._encoded(matrix, kind) for _ in range(2)][1]
        assert [shape for shape in calls if shape == matrix.shape] == ([] if wrong else [matrix.shape] * 2)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one.float(), other.float())
    fp8_linear._kernel_is_right.cache_clear()

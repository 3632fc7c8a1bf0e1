"""What the optimizers do to weights in one process, beside torch's and bitsandbytes' own."""

from __future__ import annotations

from typing import Any

import bitsandbytes
import pytest
import torch
from few_layers import Together, assert_equal, layer, of_swift, trained
from torch.optim import _muon

from swift.contracts import Matrix, Placement
from swift.plugins.load import load_optimizer
from swift_tuning.block_codecs import EightBits, FourBits


def in_fp32(grad: torch.Tensor, coefficients: tuple[float, ...], steps: int, eps: float) -> torch.Tensor:
    """torch's own iteration, whose matrix is not cast to bfloat16."""
    return _NEWTON_SCHULZ(_StaysFp32(grad), coefficients, steps, eps).as_subclass(torch.Tensor)


class _StaysFp32(torch.Tensor):
    def bfloat16(self) -> torch.Tensor:  # type: ignore[override]
        return self.clone()


_NEWTON_SCHULZ = _muon._zeropower_via_newtonschulz


@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_torchs_for_matrices_and_adamw_for_the_rest(
    adjust: str, nesterov: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_muon, "_zeropower_via_newtonschulz", in_fp32)
    theirs = layer()
    matrices = [theirs.up.weight, theirs.down.weight]
    decayed = [theirs.embed.weight, theirs.lm_head.weight]
    adam = {"lr": 1e-2, "betas": (0.9, 0.95)}
    both = Together(
        torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1, nesterov=nesterov, adjust_lr_fn=adjust),
        torch.optim.AdamW(decayed, weight_decay=0.1, **adam),
        torch.optim.AdamW([theirs.up.bias], weight_decay=0.0, **adam),
    )
    model, optimizer = of_swift("muon", monkeypatch, adjust_lr=adjust, nesterov=nesterov)
    assert_equal(trained(model, optimizer), trained(theirs, both))


def test_lion_is_bitsandbytes_lion_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = layer()
    decayed = [each for each in theirs.parameters() if each.ndim == 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": [theirs.up.bias], "weight_decay": 0.0}]
    model, optimizer = of_swift("lion", monkeypatch)
    assert_equal(trained(model, optimizer), trained(theirs, bitsandbytes.optim.Lion32bit(groups, lr=1e-2)))


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
def test_sgd_is_torchs_with_weight_decay_by_itself(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = layer()
    plain = torch.optim.SGD(theirs.parameters(), lr=1e-2, **options)

    def decayed(optimizer: Any, *_: Any) -> None:
        for each in theirs.parameters():
            if each.ndim == 2:
                each.data.mul_(1 - optimizer.param_groups[0]["lr"] * 0.1)

    plain.register_step_pre_hook(decayed)
    model, optimizer = of_swift("sgd", monkeypatch, **options)
    assert_equal(trained(model, optimizer), trained(theirs, plain))


def test_eight_bits_are_bitsandbytes_own(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = layer()
    decayed = [each for each in theirs.parameters() if each.ndim == 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": [theirs.up.bias], "weight_decay": 0.0}]
    own = bitsandbytes.optim.AdamW8bit(groups, lr=1e-2, betas=(0.9, 0.95))
    model, optimizer = of_swift("adamw_8bit", monkeypatch)
    # Their code for the largest negative element of a block is -0.993, ours -1.
    expected = trained(theirs, own)
    for name, found in trained(model, optimizer).items():
        moved = (expected[name] - dict(layer().named_parameters())[name]).norm()
        assert (found - expected[name]).norm() < 0.02 * moved, name


@pytest.mark.parametrize(("name", "within"), [("adamw_8bit", 0.08), ("adamw_4bit", 0.4)])
def test_low_bit_optimizer_matches_adamw_and_memory(name: str, within: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Low-bit optimizers come near AdamW and take the memory that they claim."""
    exact = trained(*of_swift("adamw", monkeypatch))
    model, optimizer = of_swift(name, monkeypatch)
    start = dict(layer().named_parameters())
    for key, found in trained(model, optimizer).items():
        assert (found - exact[key]).norm() < within * (exact[key] - start[key]).norm(), key
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        held = sum(
            sum(part.numel() * part.element_size() for part in (each.quantized, each.scales))
            if hasattr(each, "quantized")
            else each.numel() * each.element_size()
            for each in (state["exp_avg"], state["exp_avg_sq"])
        )
        claimed = load_optimizer(name).object.bytes_per_parameter(tuple(parameter.shape))
        assert held == claimed * parameter.numel()


@pytest.mark.parametrize("codec", [EightBits(), FourBits()])
@pytest.mark.parametrize("signed", [True, False])
def test_what_was_encoded_is_encoded_to_the_same_again(codec: EightBits | FourBits, signed: bool) -> None:
    torch.manual_seed(0)
    values = torch.randn(64 * 256) * torch.rand(64).repeat_interleave(256)
    values[:256] = 0
    values[256] = -1e-30
    once = codec.encode(values if signed else values.abs(), signed=signed)
    decoded = codec.decode(once, signed=signed)
    again = codec.encode(decoded, signed=signed)
    assert torch.equal(once.quantized[256:], again.quantized[256:])  # before, all elements are 0: the scale says it all
    assert torch.equal(once.scales, again.scales)
    assert torch.equal(decoded, codec.decode(again, signed=signed))


def test_options_of_adafactor_are_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    default = trained(*of_swift("adafactor", monkeypatch))
    assert any(
        not torch.equal(found, default[name])
        for name, found in trained(*of_swift("adafactor", monkeypatch, beta2_decay=-0.1)).items()
    )


@pytest.mark.parametrize("name", ["adamw_8bit", "adamw_4bit"])
def test_low_bit_are_the_same_bits_however_a_weight_is_cut(name: str) -> None:
    rows, columns, steps = 64, 512, 5
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(rows, columns, generator=generator)
    grads = [torch.randn(rows, columns, generator=generator) for _ in range(steps)]
    plugin = load_optimizer(name).object

    def updated(*region: slice) -> list[torch.Tensor]:
        weight = torch.nn.Parameter(start[region].clone())
        placement = Placement("up", (rows, columns), region, (Matrix("up", 0, (rows, columns)),))
        group = {"params": [weight], "placements": [placement], "lr": 0.1, "weight_decay": 0.1, "lr_scale": 1.0}
        optimizer: Any = plugin.make([group], plugin.options_model(), torch.device("cpu"))
        for grad in grads:
            weight.grad = grad[region].clone()
            optimizer.step()
        slots = optimizer.slot_values(weight)
        return [weight.detach(), slots["exp_avg"], slots["exp_avg_sq"]]

    whole = updated(slice(0, rows), slice(0, columns))
    for region in ((slice(0, 24), slice(0, columns)), (slice(24, rows), slice(256, columns))):
        for found, expected in zip(updated(*region), whole, strict=True):
            assert torch.equal(found, expected[region])

"""Gradients are cut as torch cuts them, in fewer passes."""

from __future__ import annotations

import pytest
import torch

from swift.contracts import Placement, ScalesGradients
from swift.optim.build import clip


def weights() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    made = [
        torch.nn.Parameter(torch.randn(16, 256)),
        torch.nn.Parameter(torch.randn(7)),
        torch.nn.Parameter(torch.ones(3)),
    ]
    for each in made[:2]:
        each.grad = torch.randn_like(each)
    return made


@pytest.mark.parametrize("limit", [0.5, 64.5, 1e6, torch.inf])
def test_gradients_are_those_of_torch(limit):
    ours, theirs = weights(), weights()
    norm = clip(ours, limit, torch.optim.SGD(ours, 0.1))
    assert norm == float(torch.nn.utils.clip_grad_norm_(theirs, limit))
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(ours[:2], theirs[:2], strict=True))
    assert ours[2].grad is None


class Scaling(torch.optim.SGD):
    """SGD that scales gradients itself."""

    gradient_factor = 1.0


def test_gradient_scaling_optimizer_gets_factor():
    ours, theirs = weights(), weights()
    optimizer = Scaling(ours, 0.1)
    assert isinstance(optimizer, ScalesGradients)
    norm = clip(ours, 0.5, optimizer)
    assert torch.equal(ours[0].grad, theirs[0].grad)
    assert optimizer.gradient_factor == pytest.approx(0.5 / norm)
    clip(ours, 1e6, optimizer)
    assert optimizer.gradient_factor == 1.0


@pytest.mark.parametrize("name", ["adamw_8bit", "adamw_4bit"])
def test_moments_in_low_bit_see_gradients_that_were_cut(name):
    pytest.importorskip("bitsandbytes")
    from swift_tuning.block_codecs import FourBits, eight_bits
    from swift_tuning.low_bit_adam import QuantisedAdamW

    def updated(*, by_the_optimizer: bool) -> list[torch.Tensor]:
        made = weights()[:2]
        whole = [Placement("", each.shape, tuple(slice(0, size) for size in each.shape), ()) for each in made]
        groups = [{"params": made, "placements": whole, "lr": 0.01, "weight_decay": 0.1}]
        codec = eight_bits() if name == "adamw_8bit" else FourBits()
        optimizer = QuantisedAdamW(groups, codec, betas=(0.9, 0.99), eps=1e-8)
        for _ in range(3):
            clip(made, 0.5, optimizer if by_the_optimizer else torch.optim.SGD(made, 0.1))
            optimizer.step()
        return made

    for one, other in zip(updated(by_the_optimizer=True), updated(by_the_optimizer=False), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)

"""Recomputation on the CPU layer draws the same dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from swift_backend_megatron.cpu import transformer_engine as te


def test_dropout_is_the_same_when_computed_again() -> None:
    tracker = te.CudaRNGStatesTracker()
    tracker.add("model-parallel-rng", 3)
    masks = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x.sin(), 0.5)
        with tracker.fork():
            y = F.dropout(y, 0.5)
        masks.append(y.detach() == 0)
        return y.cos() * y

    x = torch.randn(64, requires_grad=True)
    out = te.checkpoint(layer, x, get_rng_state_tracker=lambda: tracker)
    with tracker.fork():
        torch.rand(1)
    later = tracker.get_states()
    out.sum().backward()
    assert len(masks) == 2
    assert torch.equal(*masks)
    assert all(torch.equal(state, later[name]) for name, state in tracker.get_states().items())

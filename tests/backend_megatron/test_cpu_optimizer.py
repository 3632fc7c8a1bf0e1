"""Adam and the operations on lists of tensors of the CPU layer against torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from swift_backend_megatron.cpu import transformer_engine as te


@pytest.mark.parametrize("decoupled", [True, False])
def test_adam_is_that_of_torch(decoupled: bool) -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(7))]
    theirs = [torch.nn.Parameter(each.detach().clone()) for each in ours]
    options: dict[str, Any] = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    one = te.FusedAdam([{"params": ours}, {"params": []}], adam_w_mode=decoupled, **options)
    other = (torch.optim.AdamW if decoupled else torch.optim.Adam)(theirs, **options)
    for _ in range(5):
        for mine, yours in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            yours.grad = mine.grad.clone()
        one.step()
        other.step()
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, yours, rtol=1e-6, atol=1e-6)
        assert one.state[mine].keys() == {"exp_avg", "exp_avg_sq"}
        torch.testing.assert_close(one.state[mine]["exp_avg_sq"], other.state[yours]["exp_avg_sq"])
    assert one.param_groups[0]["step"] == 5
    assert "step" not in one.param_groups[1]


def test_norms_and_scaling_of_many_tensors() -> None:
    tensors = [torch.randn(3), torch.randn(2, 2)]
    norm, each = te.multi_tensor_applier(te.multi_tensor_l2norm, torch.zeros(1), [tensors], True)
    torch.testing.assert_close(norm, torch.cat([tensor.flatten() for tensor in tensors]).norm()[None])
    torch.testing.assert_close(each, torch.stack([tensor.norm() for tensor in tensors]))
    targets = [torch.empty_like(tensor, dtype=torch.bfloat16) for tensor in tensors]
    te.multi_tensor_applier(te.multi_tensor_scale, torch.zeros(1), [tensors, targets], 0.5)
    torch.testing.assert_close(targets[0], (tensors[0] * 0.5).bfloat16())


class _NamesOfOperations(TorchDispatchMode):
    """Notes which operations ran."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def test_gradients_are_clipped_where_they_are() -> None:
    """Scaling them elsewhere first would take all of their memory once more."""
    gradients, overflow = [torch.ones(3), torch.ones(2, 2)], torch.zeros(1)
    with _NamesOfOperations() as ran:
        te.multi_tensor_applier(te.multi_tensor_scale, overflow, [gradients, gradients], 0.25)
    assert [float(each.sum()) for each in gradients] == [0.75, 1.0]
    assert ran.names == ["aten._foreach_mul_"]

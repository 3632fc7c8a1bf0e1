"""Linear layers, norms and grouped experts of the CPU layer against plain torch, and the marks on their weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from swift_backend_megatron.cpu import transformer_engine as te


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normalization", ["RMSNorm", "LayerNorm"])
@pytest.mark.parametrize("centred", [False, True])
def test_norm_and_product_in_one(dtype: torch.dtype, normalization: str, centred: bool) -> None:
    layer = te.LayerNormLinear(
        6,
        4,
        normalization=normalization,
        zero_centered_gamma=centred,
        return_layernorm_output=True,
        return_bias=True,
        params_dtype=dtype,
    )
    assert next(iter(layer.state_dict())) == "layer_norm_weight"
    x = torch.randn(3, 2, 6, dtype=dtype)
    out, bias, normed = layer(x)
    expected = F.rms_norm(x, (6,), eps=1e-5) if normalization == "RMSNorm" else F.layer_norm(x, (6,))
    torch.testing.assert_close(normed, expected)
    torch.testing.assert_close(out, F.linear(expected, layer.weight))
    assert bias is layer.bias
    assert out.dtype is dtype


def test_sharded_weights_are_marked() -> None:
    column = te.Linear(8, 8, parallel_mode="column", tp_size=2, sequence_parallel=True)
    row = te.Linear(8, 8, parallel_mode="row", tp_size=2, sequence_parallel=True)
    assert (column.weight.shape, row.weight.shape) == ((4, 8), (8, 4))
    assert (column.weight.partition_dim, row.weight.partition_dim) == (0, 1)
    assert column.bias.tensor_model_parallel
    assert row.bias.sequence_parallel
    assert not hasattr(row.bias, "tensor_model_parallel")
    assert not hasattr(te.Linear(8, 8).weight, "tensor_model_parallel")


def test_experts_without_tokens_get_gradients_of_zero() -> None:
    layer = te.GroupedLinear(3, 4, 5, bias=True)
    x = torch.randn(6, 4, requires_grad=True)
    out = layer(x, [4, 0, 2])
    parts = [F.linear(x[:4], layer.weight0, layer.bias0), F.linear(x[4:], layer.weight2, layer.bias2)]
    torch.testing.assert_close(out, torch.cat(parts))
    out.sum().backward()
    assert torch.equal(layer.weight1.grad, torch.zeros(5, 4))
    assert layer.weight0.grad.abs().sum() > 0
    layer(torch.zeros(0, 4), [0, 0, 0]).sum().backward()

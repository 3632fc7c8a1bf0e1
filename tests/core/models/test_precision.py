"""The precision in which a model computes, and why."""

from __future__ import annotations

import pytest
import torch

from swift.models.precision import resolve_dtype


def test_precision_that_a_cpu_lacks_is_named_as_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without instructions for bfloat16 computes it, but the run says that this is slow."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False, raising=False)
    name, reason = resolve_dtype("bfloat16", "cpu")
    assert name == "bfloat16"
    assert "slow" in reason
    assert "--torch_dtype float32" in reason
    assert resolve_dtype("float32", "cpu") == ("float32", "as requested")
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True, raising=False)
    assert resolve_dtype("bfloat16", "cpu") == ("bfloat16", "as requested")

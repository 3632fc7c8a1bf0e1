"""What the CPU layer lacks is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from swift_backend_megatron.cpu import transformer_engine as te


@pytest.mark.parametrize(
    "refused",
    [
        lambda: te.DotProductAttention(4, 8, softmax_type="learnable"),
        lambda: te.DotProductAttention(4, 8, softmax_type="off-by-one"),
        lambda: te.DotProductAttention(4, 8, return_max_logit=True),
        lambda: te.fp8_autocast(enabled=True),
        lambda: te.Linear(4, 4, fuse_wgrad_accumulation=True),
        lambda: te.Linear(4, 4, delay_wgrad_compute=True),
        lambda: te.FusedAdam([torch.zeros(1)], use_decoupled_grad=True),
        lambda: te.Linear(4, 4).set_extra_state(torch.ones(3, dtype=torch.uint8)),
    ],
)
def test_what_is_missing_is_refused(refused: Any) -> None:
    with pytest.raises(NotImplementedError, match="needs CUDA and Transformer Engine"):
        refused()

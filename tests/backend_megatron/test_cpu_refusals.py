"""What the CPU layer lacks is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from swift.config.sections import OptimSection
from swift.errors import CheckpointError
from swift_backend_megatron.cpu import transformer_engine as te
from swift_backend_megatron.native_writer import decay_style


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


def test_unsupported_lr_schedule_is_not_written_to_checkpoint() -> None:
    """A schedule that Megatron-LM does not have is not written into its checkpoints."""
    assert decay_style(OptimSection(schedule="inverse_sqrt")) == "inverse-square-root"
    assert decay_style(OptimSection(schedule="warmup_stable_decay")) == "WSD"
    assert decay_style(OptimSection(schedule="polynomial")) == "linear"
    for options in ({"power": 2.0}, {"num_cycles": 3}):
        shape = "polynomial" if "power" in options else "cosine_with_restarts"
        with pytest.raises(CheckpointError, match=f"does not have this run's schedule, {shape}"):
            decay_style(OptimSection(schedule=shape, schedule_options=options))

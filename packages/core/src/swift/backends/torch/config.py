"""The `backend` section when the backend is `torch`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from swift.backends.base import TorchOptions


class TorchConfig(TorchOptions):
    """Options of the built-in backend."""

    bucket_mb: PositiveFloat = Field(25.0, description="Bucket size of the gradient all-reduce between processes")
    fp8: Literal["none", "e4m3", "hybrid"] = Field(
        "none",
        description="Multiply matrices of the transformer blocks in FP8 with torchao; hybrid: gradients in "
        "e5m2. Weights, optimizer and checkpoints keep their precision",
    )
    fp8_emulated: bool = Field(
        False, description="Emulate FP8 on any device (slow): round as FP8 does, multiply in higher precision"
    )

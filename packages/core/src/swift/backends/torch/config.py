"""The `backend` section when the backend is `torch`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from swift.config.limits import Threads
from swift.config.sections import Section


class TorchConfig(Section):
    """Options of the built-in backend."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where to train; auto is a GPU if there is one")
    bucket_mb: PositiveFloat = Field(25.0, description="Gradients are added up across processes in pieces this large")
    cpu_threads: Threads | None = Field(
        None, description="Threads per process on the CPU; default: the cores divided by the processes here"
    )
    fp8: Literal["none", "e4m3", "hybrid"] = Field(
        "none",
        description="Matrix products of blocks in FP8, by torchao on GPUs that have it; with hybrid, gradients are in "
        "e5m2. Weights, optimizer and checkpoints stay as they are",
    )
    fp8_emulated: bool = Field(
        False, description="Round as FP8 does, and multiply in higher precision: its numbers on any device, slowly"
    )

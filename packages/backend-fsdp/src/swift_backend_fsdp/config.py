"""The `backend` section when the backend is `fsdp`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from swift import TorchOptions


class FsdpConfig(TorchOptions):
    """Options of the FSDP backend."""

    hybrid: bool = Field(False, description="Shard within each machine, and keep a replica on every one (HSDP)")
    offload: bool = Field(False, description="Keep weights, gradients and optimizer in the CPU's memory")
    reshard_after_forward: bool = Field(
        True, description="Let go of a block's gathered weights after the forward pass; false takes memory for speed"
    )
    prefetch: NonNegativeInt = Field(1, description="Blocks whose weights are gathered ahead of their turn")
    reduce_dtype: Literal["float32", "compute"] = Field(
        "float32", description="Precision in which gradients are added up; compute is that of model.dtype"
    )
    reduce: Literal["step", "micro_batch"] = Field(
        "step",
        description="When gradients are added up and sharded: once a step, whole until then, or after each "
        "micro-batch, which takes traffic and saves the memory of a whole gradient under accumulation",
    )
    checkpoint_every: PositiveInt = Field(
        1,
        description="With train.gradient_checkpointing, recompute one block in N",
    )
    fp8: Literal["none", "e4m3", "hybrid"] = Field(
        "none",
        description="Matrix products of blocks in FP8, by torchao on GPUs that have it; with hybrid, gradients are in "
        "e5m2. Weights, optimizer and checkpoints stay as they are",
    )
    fp8_emulated: bool = Field(
        False, description="Round as FP8 does, and multiply in higher precision: its numbers on any device, slowly"
    )

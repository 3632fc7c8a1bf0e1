"""The `backend` section when the backend is `megatron`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from swift import TorchOptions


class MegatronConfig(TorchOptions):
    """Options of the Megatron backend."""

    use_distributed_optimizer: bool = Field(
        True, description="Shard optimizer state and fp32 weights over the data parallel processes (ZeRO 1)"
    )
    overlap: bool = Field(False, description="Reduce gradients and gather weights while computing")
    stages: tuple[PositiveInt, ...] = Field(
        (), description="Layers of each pipeline stage (of each virtual stage under vpp); default: equal numbers"
    )
    first_stage: PositiveInt | None = Field(None, description="Layers of the first pipeline stage, where it has fewer")
    last_stage: PositiveInt | None = Field(None, description="Layers of the last pipeline stage, where it has fewer")
    recompute: Literal["full", "selective"] = Field(
        "full", description="What train.gradient_checkpointing recomputes: whole layers, or parts of each"
    )
    recompute_method: Literal["uniform", "block"] = Field(
        "uniform",
        description="Under recompute full: all layers, recompute_layers of them from one kept input (uniform), or only "
        "the first recompute_layers of each stage (block)",
    )
    recompute_layers: PositiveInt = Field(1, description="Number of layers for recompute_method")
    recompute_modules: tuple[Literal["core_attn", "mlp", "moe"], ...] = Field(
        ("core_attn",), min_length=1, description="Parts that recompute selective recomputes: core_attn, mlp, moe"
    )
    dispatcher: Literal["alltoall", "allgather"] = Field("alltoall", description="How tokens get to their experts")
    moe_capacity: PositiveFloat | None = Field(
        None, description="Tokens that an expert takes, as a multiple of its fair share; default: all, none is dropped"
    )
    moe_pad_to_capacity: bool = Field(False, description="Pad every expert's tokens to its capacity")
    fp8: Literal["none", "e4m3", "hybrid"] = Field(
        "none", description="Matrix products in FP8, where Transformer Engine has it"
    )

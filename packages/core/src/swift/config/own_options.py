"""The options of core's own optimizers and tuners. Their flags are known whichever plugin is selected."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from swift.config.limits import BelowOne, Pattern
from swift.config.options import Section


class AdamOptions(Section):
    """Options of Adam and of its 8-bit form."""

    beta1: BelowOne = Field(0.9, description="Adam's first moment")
    beta2: BelowOne = Field(0.95, description="Adam's second moment")
    eps: Annotated[float, Field(gt=0.0, le=1.0)] = Field(1e-8, description="Adam's epsilon")


class NoOptions(Section):
    """No options."""


class FullOptions(Section):
    """Options of training the model's own weights."""

    freeze: tuple[Pattern, ...] = Field((), description="Patterns of weight names that stay as they are (full only)")
    train_only: tuple[Pattern, ...] = Field((), description="Patterns of the only weight names to train (full only)")


class LoraOptions(Section):
    """Options of low-rank adapters."""

    rank: Annotated[int, Field(ge=1, le=2**16)] = Field(8, description="Rank of the adapters")
    alpha: PositiveFloat = Field(32.0, description="Scale of the adapters (divided by the rank)")
    dropout: BelowOne = Field(0.05, description="Dropout on the adapters' input")
    targets: tuple[Pattern, ...] = Field(("all-linear",), description="Modules that get an adapter")
    modules_to_save: tuple[Pattern, ...] = Field((), description="Modules trained in full next to the adapters")
    dora: bool = Field(False, description="DoRA: train direction and magnitude apart")
    rslora: bool = Field(False, description="Rank-stabilised scale: alpha / sqrt(rank)")
    lora_plus_ratio: PositiveFloat | None = Field(None, description="LoRA+: learning rate of B over that of A")
    init: Literal["default", "gaussian"] = Field("default", description="How adapters start")

"""The options of the optimizers and tuners. Importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from swift import Section
from swift.config.limits import Pattern
from swift.config.own_options import TargetOptions

BelowOne = Annotated[float, Field(ge=0.0, lt=1.0)]


class SgdOptions(Section):
    """Options of `sgd`."""

    momentum: BelowOne = Field(0.0, description="Weight of earlier gradients (sgd, muon)")
    nesterov: bool = Field(False, description="Look ahead by the momentum (sgd, muon)")


class LionOptions(Section):
    """Options of `lion`."""

    beta1: BelowOne = Field(0.9, description="Weight of the momentum in an update")
    beta2: BelowOne = Field(0.99, description="How slowly the momentum changes")


class MuonOptions(Section):
    """Options of `muon`: those of matrices, and Adam's for all other weights."""

    momentum: BelowOne = Field(0.95, description="Weight of earlier gradients (sgd, muon)")
    nesterov: bool = Field(True, description="Look ahead by the momentum (sgd, muon)")
    ns_steps: int = Field(5, ge=1, le=50, description="Steps of the Newton-Schulz iteration (muon)")
    ns_dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Precision of the Newton-Schulz iteration (muon)"
    )
    adjust_lr: Literal["match_rms_adamw", "original"] = Field(
        "match_rms_adamw",
        description="Size of updates by a matrix's shape (muon): as large as AdamW's, so that its learning rates and "
        "weight decays fit, or as first published",
    )
    beta1: BelowOne = Field(0.9, description="Adam's first moment")
    beta2: BelowOne = Field(0.95, description="Adam's second moment")
    eps: Annotated[float, Field(gt=0.0, le=1.0)] = Field(1e-8, description="Adam's epsilon")


class ScheduleFreeOptions(Section):
    """Options of `schedule_free`."""

    beta1: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.9, description="Where gradients are taken, between the steps (0) and their average (1)"
    )
    beta2: BelowOne = Field(0.95, description="Adam's second moment")
    eps: Annotated[float, Field(gt=0.0, le=1.0)] = Field(1e-8, description="Adam's epsilon")


Rank = Annotated[int, Field(ge=1, le=2**16)]
Alpha = Annotated[float, Field(gt=0.0)]


class MissOptions(TargetOptions):
    """Options of `miss`."""

    rank: Rank = Field(64, description="Rank of the adapters")
    dropout: BelowOne = Field(0.0, description="Dropout on the adapters' input")


class OftOptions(TargetOptions):
    """Options of `oft`."""

    block_size: Annotated[int, Field(ge=2, le=2**16)] = Field(
        32, description="Inputs that are rotated together: a divisor of the width of every module (oft, boft)"
    )


class HiraOptions(TargetOptions):
    """Options of `hira`."""

    rank: Rank = Field(32, description="Rank of the adapters")
    dropout: BelowOne = Field(0.0, description="Dropout on the adapters' input")


class LohaOptions(TargetOptions):
    """Options of `loha`."""

    rank: Rank = Field(8, description="Rank of the adapters")
    alpha: Alpha = Field(8.0, description="Scale of the adapters (divided by the rank)")


class LokrOptions(TargetOptions):
    """Options of `lokr`."""

    rank: Rank = Field(8, description="Rank of the adapters")
    alpha: Alpha = Field(8.0, description="Scale of the adapters (divided by the rank)")
    factor: Annotated[int, Field(ge=2, le=2**16)] | None = Field(
        None, description="Into how many blocks a side of a weight is cut; default: near its square root (lokr)"
    )


class Ia3Options(TargetOptions):
    """Options of `ia3`."""

    feedforward: tuple[Pattern, ...] | None = Field(
        None,
        description="Modules whose inputs are scaled, while the outputs of others are; default: down_proj (ia3)",
    )


class VeraOptions(TargetOptions):
    """Options of `vera`."""

    rank: Rank = Field(256, description="Rank of the adapters")
    dropout: BelowOne = Field(0.0, description="Dropout on the adapters' input")
    d_initial: Annotated[float, Field(gt=0.0)] = Field(
        0.1, description="What the scales of the shared directions begin with (vera)"
    )


class BoftOptions(TargetOptions):
    """Options of `boft`."""

    block_size: Annotated[int, Field(ge=2, le=2**16)] = Field(
        4, description="Inputs that are rotated together: a divisor of the width of every module (oft, boft)"
    )
    factors: Annotated[int, Field(ge=1, le=16)] = Field(
        1, description="Rotations, of blocks of other inputs each, that are multiplied (boft)"
    )


class GraloraOptions(TargetOptions):
    """Options of `gralora`."""

    rank: Rank = Field(32, description="Rank of the adapters")
    alpha: Alpha = Field(64.0, description="Scale of the adapters (divided by the rank)")
    blocks: Annotated[int, Field(ge=1, le=64)] = Field(
        2,
        description="Blocks into which a side of a weight is cut: a divisor of the rank and of every width (gralora)",
    )
    dropout: BelowOne = Field(0.0, description="Dropout on the adapters' input")

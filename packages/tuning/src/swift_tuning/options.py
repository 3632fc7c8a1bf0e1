"""The options of the optimizers and tuners. Importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from swift import Section
from swift.config.limits import Pattern
from swift.config.own_options import AdamOptions, TargetOptions

BelowOne = Annotated[float, Field(ge=0.0, lt=1.0)]


class SgdOptions(Section):
    """Options of `sgd`."""

    momentum: BelowOne = Field(0.0, description="Weight of earlier gradients (sgd, muon)")
    nesterov: bool = Field(False, description="Look ahead by the momentum (sgd, muon)")


class LionOptions(Section):
    """Options of `lion`."""

    beta1: BelowOne = Field(0.9, description="Weight of the momentum in an update")
    beta2: BelowOne = Field(0.99, description="How slowly the momentum changes")


class MuonOptions(AdamOptions):
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


Rank = Annotated[int, Field(ge=1, le=2**16)]
Steps = Annotated[int, Field(ge=1, le=2**31)]


class LowRankOptions(AdamOptions):
    """Options that GaLore and APOLLO share, and Adam's."""

    rank: Rank = Field(128, description="Rank to which gradients of matrices are projected (galore, apollo)")
    update_proj_gap: Steps = Field(200, description="Steps between two projections of gradients (galore, apollo)")
    scale: Annotated[float, Field(gt=0.0)] = Field(0.25, description="Factor on the updates (galore, apollo)")
    targets: tuple[Pattern, ...] = Field(
        (), description="Patterns of names of projected matrices; default: all between features (galore, apollo)"
    )


class GaloreOptions(LowRankOptions):
    """Options of `galore`."""

    proj_type: Literal["std", "reverse_std", "left", "right"] = Field(
        "std", description="Which side of a matrix is projected (galore): the shorter, the longer, rows or columns"
    )


class QGaloreOptions(LowRankOptions):
    """Options of `q_galore`."""

    group_size: Annotated[int, Field(ge=2, le=2**16, multiple_of=2)] = Field(
        256, description="Elements of a projection that share a scale (q_galore)"
    )
    cos_threshold: Annotated[float, Field(ge=-1.0, le=1.0)] = Field(
        0.4, description="Similarity of first vectors from which projections are renewed less often (q_galore)"
    )
    gamma_proj: Annotated[float, Field(ge=1.0)] = Field(
        2.0, description="By how much less often they are then renewed (q_galore)"
    )
    queue_size: Annotated[int, Field(ge=1, le=2**16)] = Field(
        5, description="Over how many projections the similarity is taken (q_galore)"
    )


class ApolloOptions(LowRankOptions):
    """Options of `apollo`."""

    scale: Annotated[float, Field(gt=0.0)] = Field(1.0, description="Square of the factor on the updates (apollo)")
    scale_type: Literal["channel", "tensor"] = Field(
        "channel", description="What one factor of APOLLO is for: a row or column, or a whole matrix (apollo)"
    )
    projection_seed: Annotated[int, Field(ge=0)] = Field(0, description="Seed of the projections (apollo)")


class ApolloMiniOptions(ApolloOptions):
    """Options of `apollo_mini`."""

    rank: Rank = Field(1, description="Rank to which gradients of matrices are projected (galore, apollo)")
    scale: Annotated[float, Field(gt=0.0)] = Field(128.0, description="Square of the factor on the updates (apollo)")
    scale_type: Literal["channel", "tensor"] = Field(
        "tensor", description="What one factor of APOLLO is for: a row or column, or a whole matrix (apollo)"
    )


class AdamMiniOptions(AdamOptions):
    """Options of `adam_mini`."""


class ScheduleFreeOptions(Section):
    """Options of `schedule_free`."""

    beta1: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.9, description="Where gradients are taken, between the steps (0) and their average (1)"
    )
    beta2: BelowOne = Field(0.95, description="Adam's second moment")
    eps: Annotated[float, Field(gt=0.0, le=1.0)] = Field(1e-8, description="Adam's epsilon")


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


class LisaOptions(Section):
    """Options of `lisa`."""

    layers: Annotated[int, Field(ge=1, le=10_000)] = Field(2, description="Layers that are trained at a time (lisa)")
    interval: Annotated[int, Field(ge=1)] = Field(
        20, description="Steps after which other layers have their turn (lisa, badam)"
    )


class BadamOptions(Section):
    """Options of `badam`."""

    interval: Annotated[int, Field(ge=1)] = Field(
        100, description="Steps after which other layers have their turn (lisa, badam)"
    )
    order: Literal["random", "ascending", "descending"] = Field(
        "random", description="Order in which layers have their turns, each once in a round (badam)"
    )

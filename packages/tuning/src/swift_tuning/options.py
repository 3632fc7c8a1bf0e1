"""The options of the optimizers and tuners. Importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from swift import Section
from swift.config.limits import Pattern
from swift.config.own_options import AdamOptions, Rank, TargetOptions

BelowOne = Annotated[float, Field(ge=0.0, lt=1.0)]


class SgdOptions(Section):
    """Options of `sgd`."""

    momentum: BelowOne = Field(0.0, description="Momentum (sgd, muon)")
    nesterov: bool = Field(False, description="Use Nesterov momentum (sgd, muon)")


class LionOptions(Section):
    """Options of `lion`."""

    beta1: BelowOne = Field(0.9, description="Weight of the momentum in the update (lion)")
    beta2: BelowOne = Field(0.99, description="Decay of the momentum (lion)")


class MuonOptions(AdamOptions):
    """Options of `muon`: those of matrices, and Adam's for all other weights."""

    momentum: BelowOne = Field(0.95, description="Momentum (sgd, muon)")
    nesterov: bool = Field(True, description="Use Nesterov momentum (sgd, muon)")
    ns_steps: int = Field(5, ge=1, le=50, description="Steps of the Newton-Schulz iteration (muon)")
    ns_dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Precision of the Newton-Schulz iteration (muon)"
    )
    adjust_lr: Literal["match_rms_adamw", "original"] = Field(
        "match_rms_adamw",
        description="Scale of updates by a matrix's shape (muon): that of AdamW, so that its learning rates and "
        "weight decays can be used, or the original",
    )


Steps = Annotated[int, Field(ge=1, le=2**31)]


class LowRankOptions(AdamOptions):
    """Options that GaLore and APOLLO share, and Adam's."""

    rank: Rank = Field(128, description="Rank to which gradients of matrices are projected (galore, apollo)")
    update_proj_gap: Steps = Field(200, description="Steps between two projections of gradients (galore, apollo)")
    scale: Annotated[float, Field(gt=0.0)] = Field(0.25, description="Scale of the updates (galore, apollo)")
    targets: tuple[Pattern, ...] = Field(
        (), description="Name patterns of the projected matrices; default: those of all linear layers (galore, apollo)"
    )


class GaloreOptions(LowRankOptions):
    """Options of `galore`."""

    proj_type: Literal["std", "reverse_std", "left", "right"] = Field(
        "std", description="Which side of a matrix is projected (galore): the shorter, the longer, rows or columns"
    )


class QGaloreOptions(LowRankOptions):
    """Options of `q_galore`."""

    group_size: Annotated[int, Field(ge=2, le=2**16, multiple_of=2)] = Field(
        256, description="Elements of a projection that share a quantization scale (q_galore)"
    )
    cos_threshold: Annotated[float, Field(ge=-1.0, le=1.0)] = Field(
        0.4, description="Similarity of consecutive projections above which they are updated less often (q_galore)"
    )
    gamma_proj: Annotated[float, Field(ge=1.0)] = Field(
        2.0, description="Factor on the update interval of such projections (q_galore)"
    )
    queue_size: Annotated[int, Field(ge=1, le=2**16)] = Field(
        5, description="Number of projections over which the similarity is averaged (q_galore)"
    )


class ApolloOptions(LowRankOptions):
    """Options of `apollo`."""

    scale: Annotated[float, Field(gt=0.0)] = Field(1.0, description="Square of the scale of the updates (apollo)")
    scale_type: Literal["channel", "tensor"] = Field(
        "channel",
        description="Granularity of the scaling factor: channel (a row or column) or tensor (a whole matrix) (apollo)",
    )
    projection_seed: Annotated[int, Field(ge=0)] = Field(0, description="Seed of the projections (apollo)")


class ApolloMiniOptions(ApolloOptions):
    """Options of `apollo_mini`."""

    rank: Rank = Field(1, description="Rank to which gradients of matrices are projected (galore, apollo)")
    scale: Annotated[float, Field(gt=0.0)] = Field(128.0, description="Square of the scale of the updates (apollo)")
    scale_type: Literal["channel", "tensor"] = Field(
        "tensor",
        description="Granularity of the scaling factor: channel (a row or column) or tensor (a whole matrix) (apollo)",
    )


class AdamMiniOptions(AdamOptions):
    """Options of `adam_mini`."""


class ScheduleFreeOptions(Section):
    """Options of `schedule_free`."""

    beta1: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.9, description="Where gradients are computed, between the latest weights (0) and their average (1)"
    )
    beta2: BelowOne = Field(0.95, description="Decay of Adam's second moment")
    eps: Annotated[float, Field(gt=0.0, le=1.0)] = Field(1e-8, description="Adam's epsilon")


Alpha = Annotated[float, Field(gt=0.0)]


class MissOptions(TargetOptions):
    """Options of `miss`."""

    rank: Rank = Field(64, description="Rank of the adapters")
    dropout: BelowOne = Field(0.0, description="Dropout on the adapters' input")


class OftOptions(TargetOptions):
    """Options of `oft`."""

    block_size: Annotated[int, Field(ge=2, le=2**16)] = Field(
        32, description="Size of a rotation block; must divide the input size of every module (oft, boft)"
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
        None, description="Kronecker factor: blocks per dimension of a weight; default: near its square root (lokr)"
    )


class Ia3Options(TargetOptions):
    """Options of `ia3`."""

    feedforward: tuple[Pattern, ...] | None = Field(
        None, description="Modules whose inputs are scaled instead of their outputs; default: down_proj (ia3)"
    )


class VeraOptions(TargetOptions):
    """Options of `vera`."""

    rank: Rank = Field(256, description="Rank of the adapters")
    dropout: BelowOne = Field(0.0, description="Dropout on the adapters' input")
    d_initial: Annotated[float, Field(gt=0.0)] = Field(
        0.1, description="Initial value of the scales of the shared matrices (vera)"
    )


class BoftOptions(TargetOptions):
    """Options of `boft`."""

    block_size: Annotated[int, Field(ge=2, le=2**16)] = Field(
        4, description="Size of a rotation block; must divide the input size of every module (oft, boft)"
    )
    factors: Annotated[int, Field(ge=1, le=16)] = Field(
        1, description="Number of butterfly factors that are multiplied (boft)"
    )


class GraloraOptions(TargetOptions):
    """Options of `gralora`."""

    rank: Rank = Field(32, description="Rank of the adapters")
    alpha: Alpha = Field(64.0, description="Scale of the adapters (divided by the rank)")
    blocks: Annotated[int, Field(ge=1, le=64)] = Field(
        2, description="Blocks per dimension of a weight; must divide the rank and every dimension (gralora)"
    )
    dropout: BelowOne = Field(0.0, description="Dropout on the adapters' input")


class LisaOptions(Section):
    """Options of `lisa`."""

    layers: Annotated[int, Field(ge=1, le=10_000)] = Field(
        2, description="Number of layers that are trained at a time (lisa)"
    )
    interval: Annotated[int, Field(ge=1)] = Field(
        20, description="Steps between changes of the trained layers (lisa, badam)"
    )


class BadamOptions(Section):
    """Options of `badam`."""

    interval: Annotated[int, Field(ge=1)] = Field(
        100, description="Steps between changes of the trained layers (lisa, badam)"
    )
    order: Literal["random", "ascending", "descending"] = Field(
        "random", description="Order in which the layers are trained, each once per cycle (badam)"
    )

"""The plugins of the optimizers. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from swift.config.own_options import AdamOptions
from swift.contracts import Reads, Slot
from swift_tuning.options import (
    AdamMiniOptions,
    ApolloMiniOptions,
    ApolloOptions,
    GaloreOptions,
    LionOptions,
    LowRankOptions,
    MuonOptions,
    QGaloreOptions,
    ScheduleFreeOptions,
    SgdOptions,
)

if TYPE_CHECKING:
    import torch

_ADAM = (Slot("step", "scalar"), Slot("exp_avg"), Slot("exp_avg_sq"))
_BITSANDBYTES = {"bitsandbytes": "swift-core[qlora]"}
_LEAST = 4096
"""Moments of smaller weights are kept in fp32: they take no memory worth saving."""
_LOW_RANK = (Slot("updates", "matrix"), Slot("projected_avg", "matrix"), Slot("projected_avg_sq", "matrix"))


class _Optimizer:
    """Base of the plugins, which name the class of the optimizer: it is imported when one is made."""

    made_by: str
    """Takes parameter groups and options."""
    state_bytes = 4.0
    """Bytes that are kept for each element."""

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of what is kept for an element of a weight."""
        return self.state_bytes

    def make(self, groups: list[dict[str, Any]], options: Any, device: torch.device) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = resolve_name(self.made_by)(groups, options)
        return optimizer


class Sgd(_Optimizer):
    """torch's SGD, with momentum where that is asked."""

    options_model = SgdOptions
    reads = Reads.ELEMENTS
    slots = (Slot("momentum_buffer"),)
    made_by = "swift_tuning.sgd:DecoupledSgd"

    def bytes_with_options(self, shape: Sequence[int], options: SgdOptions) -> float:
        """Return the bytes of a momentum, where there is one."""
        return 4.0 if options.momentum else 0.0


class Lion(_Optimizer):
    """Lion: a momentum of which an update takes the signs (arXiv:2302.06675)."""

    options_model = LionOptions
    reads = Reads.ELEMENTS
    slots = (Slot("exp_avg"),)
    made_by = "swift_tuning.lion:SignedMomentum"


class Muon(_Optimizer):
    """Muon: the momentum of a matrix made orthogonal; AdamW for vectors, embeddings and heads."""

    options_model = MuonOptions
    reads = Reads.PARTS
    slots = (Slot("momentum_buffer"), *_ADAM)
    made_by = "swift_tuning.muon:OrthogonalMomentum"

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of a matrix's momentum, or of a vector's two moments."""
        return 4.0 if len(shape) >= 2 else 8.0


class ScheduleFree(_Optimizer):
    """Schedule-free AdamW: weights are the average of the steps, so that no learning rate has to fall."""

    options_model = ScheduleFreeOptions
    reads = Reads.ELEMENTS
    slots = (
        Slot("z"),
        Slot("exp_avg_sq"),
        Slot("step", "scalar"),
        Slot("weight_sum", "scalar", "float64"),
        Slot("lr_max", "scalar", "float64"),
    )
    gradient_view = True
    made_by = "swift_tuning.schedule_free:ScheduleFreeAdam"
    state_bytes = 8.0


class _LowRank(_Optimizer):
    """Base of the optimizers whose bytes are those of a rank."""

    options_model: type[LowRankOptions]
    reads = Reads.PARTS
    rule: str
    """The class of the rule by which matrices are updated."""
    moment = 4.0
    """Bytes of an element of a moment,"""
    direction = 4.0
    """and of a projection."""

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of moments and projection at the default rank."""
        return self.bytes_with_options(shape, self.options_model())

    def bytes_with_options(self, shape: Sequence[int], options: LowRankOptions) -> float:
        """Return the bytes of two moments and of a projection at this rank."""
        if len(shape) < 2 or min(shape) <= options.rank:
            return 8.0
        rows, columns = shape[-2:]
        side = getattr(options, "proj_type", "std")
        right = {"right": True, "left": False, "reverse_std": rows < columns}.get(side, rows >= columns)
        kept, projected = (rows, columns) if right else (columns, rows)
        return options.rank * (2 * self.moment * kept + self.direction * projected) / (rows * columns)

    def make(self, groups: list[dict[str, Any]], options: Any, device: torch.device) -> torch.optim.Optimizer:
        from swift_tuning.low_rank import LowRankOptimizer

        return LowRankOptimizer(groups, options, resolve_name(self.rule)(options))


class Galore(_LowRank):
    """GaLore: Adam for gradients that are projected to their first singular vectors."""

    options_model = GaloreOptions
    slots = (*_ADAM, *_LOW_RANK, Slot("projection", "matrix"))
    rule = "swift_tuning.low_rank:GaloreRule"


class QGalore(_LowRank):
    """Q-GaLore: GaLore with moments in 8 bits and projections in 4, renewed less often where they stay the same."""

    options_model = QGaloreOptions
    slots = (
        *_ADAM,
        *_LOW_RANK,
        *(Slot(f"projection_{part}", "matrix") for part in ("codes", "scales", "zeros")),
        Slot("direction", "matrix"),
        Slot("schedule", "matrix"),
    )
    rule = "swift_tuning.q_galore:QGaloreRule"
    packages = _BITSANDBYTES
    moment, direction = 1 + 4 / 256, 0.5 + 8 / 256


class Apollo(_LowRank):
    """APOLLO: gradients, each channel scaled as Adam scales a random projection of it."""

    options_model: type[ApolloOptions] = ApolloOptions
    slots = (*_ADAM, *_LOW_RANK, Slot("update_norm", "matrix"))
    rule = "swift_tuning.low_rank:ApolloRule"


class ApolloMini(Apollo):
    """APOLLO of rank 1: one factor for each matrix."""

    options_model = ApolloMiniOptions


class AdamMini(_Optimizer):
    """Adam-mini: AdamW with one second moment for each head of attention, and for each row of other weights."""

    options_model = AdamMiniOptions
    reads = Reads.PARTS
    slots = (*_ADAM, Slot("block_avg_sq", "matrix"))
    made_by = "swift_tuning.adam_mini:FewSecondMoments"

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of a first moment, and of a second one for each row."""
        return 4.0 + (4.0 / shape[-1] if len(shape) > 1 else 0.0)


class _LowBitAdamW(_Optimizer):
    """Base of AdamW with low-bit moments, and a scale for each block of elements."""

    options_model = AdamOptions
    reads = Reads.PARTS
    slots = _ADAM
    made_by = "swift_tuning.low_bit_adam:QuantisedAdamW"
    codec: str
    """What encodes the moments."""
    block: int
    code_bytes: float

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of two codes, and of the scales of two blocks."""
        return 2 * (self.code_bytes + 4 / self.block) if low_bit(shape, self.block) else 8.0

    def make(self, groups: list[dict[str, Any]], options: AdamOptions, device: torch.device) -> torch.optim.Optimizer:
        codec, betas = resolve_name(self.codec)(), (options.beta1, options.beta2)
        optimizer: torch.optim.Optimizer = resolve_name(self.made_by)(groups, codec, betas=betas, eps=options.eps)
        return optimizer


class AdamW8bit(_LowBitAdamW):
    """AdamW with moments in 8 bits, by bitsandbytes' kernels."""

    codec = "swift_tuning.block_codecs:eight_bits"
    block, code_bytes = 256, 1.0
    packages = _BITSANDBYTES


class AdamW4bit(_LowBitAdamW):
    """AdamW with moments in 4 bits."""

    codec = "swift_tuning.block_codecs:FourBits"
    block, code_bytes = 128, 0.5


def low_bit(shape: Sequence[int], block: int) -> bool:
    """Return whether moments of a weight of this shape are low-bit: its rows are whole blocks."""
    return len(shape) >= 2 and shape[-1] % block == 0 and math.prod(shape) >= _LEAST

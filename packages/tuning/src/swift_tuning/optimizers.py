"""The plugins of the optimizers. Importable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from swift.contracts import Reads, Slot
from swift_tuning.options import LionOptions, MuonOptions, ScheduleFreeOptions, SgdOptions

if TYPE_CHECKING:
    import torch


class Sgd:
    """torch's SGD, with momentum where that is asked."""

    options_model = SgdOptions
    reads = Reads.ELEMENTS
    slots = (Slot("momentum_buffer"),)

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of a momentum in fp32, which there need not be."""
        return 4.0

    def make(self, groups: list[dict[str, Any]], options: SgdOptions, device: torch.device) -> torch.optim.Optimizer:
        """Return the optimizer."""
        from swift_tuning.sgd import DecoupledSgd

        return DecoupledSgd(groups, momentum=options.momentum, nesterov=options.nesterov)


class Lion:
    """Lion: a momentum of which an update takes the signs (arXiv:2302.06675)."""

    options_model = LionOptions
    reads = Reads.ELEMENTS
    slots = (Slot("exp_avg"),)

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of a momentum in fp32."""
        return 4.0

    def make(self, groups: list[dict[str, Any]], options: LionOptions, device: torch.device) -> torch.optim.Optimizer:
        """Return the optimizer."""
        from swift_tuning.lion import SignedMomentum

        return SignedMomentum(groups, betas=(options.beta1, options.beta2))


class Muon:
    """Muon: the momentum of a matrix made orthogonal; AdamW for vectors, embeddings and heads."""

    options_model = MuonOptions
    reads = Reads.PARTS
    slots = (Slot("momentum_buffer"), Slot("step", "scalar"), Slot("exp_avg"), Slot("exp_avg_sq"))

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of a matrix's momentum, or of a vector's two moments."""
        return 4.0 if len(shape) >= 2 else 8.0

    def make(self, groups: list[dict[str, Any]], options: MuonOptions, device: torch.device) -> torch.optim.Optimizer:
        """Return the optimizer."""
        from swift_tuning.muon import OrthogonalMomentum

        return OrthogonalMomentum(groups, options)


class ScheduleFree:
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

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of z and of the second moment in fp32."""
        return 8.0

    def make(
        self, groups: list[dict[str, Any]], options: ScheduleFreeOptions, device: torch.device
    ) -> torch.optim.Optimizer:
        """Return the optimizer."""
        from swift_tuning.schedule_free import ScheduleFreeAdam

        return ScheduleFreeAdam(groups, options)

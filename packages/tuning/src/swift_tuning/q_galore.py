"""Q-GaLore (arXiv:2407.08296): GaLore with projections in 4 bits, moments in 8, and fewer decompositions."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from swift.contracts import Matrix
from swift_tuning.block_codecs import AdamStep, Moments, eight_bits
from swift_tuning.low_rank import Kept, LowRankRule, first_singular_vectors
from swift_tuning.options import QGaloreOptions

_MOMENTS = (("projected_avg", True), ("projected_avg_sq", False))
"""Slot, and whether it has negative values."""
_LARGEST_CODE = 15
_LEAST_STEP = 1e-5


class QGaloreRule(LowRankRule):
    """Moments and projection lie in few bits, and a space that stays as it was is looked at less often."""

    def __init__(self, options: QGaloreOptions) -> None:
        super().__init__(options)
        self._q_galore = options
        self._codec = eight_bits()

    def start(self, matrix: Matrix, device: torch.device) -> Kept:
        """Return codes of moments and of a projection, its first vector, and when it is due again."""
        options = self._q_galore
        kept = super().start(matrix, device)
        for name, signed in _MOMENTS:
            kept |= _named(name, self._codec.encode(_padded(kept.pop(name), self._codec.block), signed=signed))
        shape = self.shape_of_projection(matrix)
        groups = -(-shape[0] * shape[1] // options.group_size)
        kept["projection_codes"] = torch.zeros(groups * options.group_size // 2, dtype=torch.uint8, device=device)
        kept["projection_scales"] = torch.zeros(groups, device=device)
        kept["projection_zeros"] = torch.zeros(groups, device=device)
        kept["direction"] = torch.zeros(shape[1 if self.on_the_right(matrix) else 0], device=device)
        # The gap, how many similarities are known, and the similarities.
        kept["schedule"] = torch.tensor([options.update_proj_gap, 0.0, *[0.0] * options.queue_size])
        return kept

    def update(self, matrix: Matrix, grad: torch.Tensor, kept: Kept) -> torch.Tensor:
        if self.is_due(kept, int(kept["schedule"][0])):
            vectors = first_singular_vectors(grad, self.options.rank, right=self.on_the_right(matrix))
            self._reschedule(vectors[0] if self.on_the_right(matrix) else vectors[:, 0], kept)
            self._keep_projection(vectors, kept)
        projection = self._projection(matrix, kept)
        low = self.projected(matrix, grad, projection)
        kept["updates"] += 1
        return self.whole(matrix, self._adam_in_low_bit(low, kept), projection).mul_(self.options.scale)

    def _adam_in_low_bit(self, low: torch.Tensor, kept: Kept) -> torch.Tensor:
        options = self.options
        flat = _padded(low, self._codec.block)
        stepped = torch.zeros_like(flat)
        first, second = (Moments(kept[f"{name}_codes"], kept[f"{name}_scales"]) for name, _ in _MOMENTS)
        betas = (options.beta1, options.beta2)
        hyper = AdamStep(int(kept["updates"]), 1.0, betas, options.eps, weight_decay=0.0)
        self._codec.update(stepped, flat, first, second, hyper)
        return stepped[: low.numel()].view_as(low).neg_()

    def _reschedule(self, direction: torch.Tensor, kept: Kept) -> None:
        """Wait longer for the next decomposition where the first vector has changed little in the last ones."""
        options, schedule = self._q_galore, kept["schedule"]
        if kept["updates"] > 0:
            similarities = schedule[2:]
            similarities.copy_(similarities.roll(-1))
            similarities[-1] = F.cosine_similarity(kept["direction"], direction, dim=0)
            schedule[1] = min(int(schedule[1]) + 1, options.queue_size)
            if schedule[1] == options.queue_size and similarities.mean() >= options.cos_threshold:
                schedule[0] = int(int(schedule[0]) * options.gamma_proj)
        kept["direction"].copy_(direction)

    def _keep_projection(self, vectors: torch.Tensor, kept: Kept) -> None:
        groups = _padded(vectors, self._q_galore.group_size).view(-1, self._q_galore.group_size)
        most, least = groups.amax(dim=1, keepdim=True), groups.amin(dim=1, keepdim=True)
        scales = (most - least).clamp(min=_LEAST_STEP) / _LARGEST_CODE
        zeros = (-torch.round(least / scales)).clamp_(0, _LARGEST_CODE)
        quantized = (torch.round(groups / scales) + zeros).clamp_(0, _LARGEST_CODE).to(torch.uint8).view(-1)
        kept["projection_codes"].copy_((quantized[::2] << 4) | quantized[1::2])
        kept["projection_scales"].copy_(scales[:, 0])
        kept["projection_zeros"].copy_(zeros[:, 0])

    def _projection(self, matrix: Matrix, kept: Kept) -> torch.Tensor:
        packed, shape = kept["projection_codes"], self.shape_of_projection(matrix)
        quantized = torch.stack([packed >> 4, packed & 15], dim=1).view(-1, self._q_galore.group_size)
        values = kept["projection_scales"].unsqueeze(1) * (quantized.float() - kept["projection_zeros"].unsqueeze(1))
        return values.view(-1)[: shape[0] * shape[1]].view(shape)

    def stored(self, kept: Kept) -> Kept:
        """Return moments in fp32, which encode to the same codes, and the rest as it is."""
        stored = {name: value for name, value in kept.items() if not name.startswith("projected_")}
        for name, signed in _MOMENTS:
            moments = Moments(kept[f"{name}_codes"], kept[f"{name}_scales"])
            stored[name] = self._codec.decode(moments, signed=signed)
        return stored

    def restored(self, stored: Kept, kept: Kept) -> Kept:
        for name, signed in _MOMENTS:
            kept |= _named(name, self._codec.encode(stored.pop(name), signed=signed))
        return kept | stored


def _named(name: str, moments: Moments) -> Kept:
    return {f"{name}_codes": moments.quantized, f"{name}_scales": moments.scales}


def _padded(values: torch.Tensor, block: int) -> torch.Tensor:
    """Return the numbers in one row of whole blocks."""
    flat = values.reshape(-1)
    return F.pad(flat, (0, -flat.numel() % block))

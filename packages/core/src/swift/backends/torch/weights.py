"""The canonical stream of weights: Hugging Face names, one tensor at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from swift.models.names import canonical_parameters

if TYPE_CHECKING:
    from swift.backends.torch.shard import TorchState
    from swift.contracts import WeightStream


def stream(state: TorchState) -> WeightStream:
    """Every weight in fp32, or the adapters alone where adapters are trained."""
    for pieces, parameter in canonical_parameters(state.model):
        flat = parameter.detach().reshape(-1)
        for piece in pieces:
            part = flat.narrow(0, piece.start, piece.numel).view(piece.shape)
            yield piece.name, part.to(torch.float32)

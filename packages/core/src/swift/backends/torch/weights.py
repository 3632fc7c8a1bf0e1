"""The canonical stream of weights: Hugging Face names, one tensor at a time."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from swift.models.names import canonical_buffers, canonical_parameters

if TYPE_CHECKING:
    from swift.backends.torch.shard import TorchState
    from swift.contracts import WeightStream


def stream(state: TorchState) -> WeightStream:
    """Every weight in fp32 and every persistent buffer, or the adapters alone where adapters are trained."""
    for pieces, tensor in chain(canonical_parameters(state.model), canonical_buffers(state.model)):
        for piece in pieces:
            part = piece.view_of(tensor.detach())
            yield piece.name, part.float() if part.is_floating_point() else part

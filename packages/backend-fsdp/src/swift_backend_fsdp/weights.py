"""The canonical stream of weights: each tensor is gathered for itself."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor

from swift.toolkit import canonical_buffers, canonical_parameters

if TYPE_CHECKING:
    from swift.contracts import WeightStream
    from swift_backend_fsdp.shard import FsdpState


def stream(state: FsdpState) -> WeightStream:
    """Every weight in fp32 and every persistent buffer, or the adapters alone where adapters are trained."""
    for pieces, tensor in chain(canonical_parameters(state.model), canonical_buffers(state.model)):
        whole = tensor.detach()
        if isinstance(whole, DTensor):
            whole = whole.to(state.arithmetic.device).full_tensor()  # type: ignore[attr-defined]  # it stays a DTensor
        for piece in pieces:
            part = piece.view_of(whole)
            yield piece.name, part.float() if part.is_floating_point() else part

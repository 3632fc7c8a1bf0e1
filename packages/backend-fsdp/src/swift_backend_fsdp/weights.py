"""The canonical stream of weights: each tensor is gathered for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

from swift.toolkit import canonical_weights

if TYPE_CHECKING:
    from swift.contracts import WeightStream
    from swift_backend_fsdp.shard import FsdpState


def stream(state: FsdpState) -> WeightStream:
    """Yield every weight. Collective: every process must read the stream to its end."""

    def whole(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, DTensor):
            return tensor.detach()
        # Offloaded shards are gathered where the process group can reach them.
        gathered: torch.Tensor = tensor.detach().to(state.arithmetic.device).full_tensor()  # type: ignore[attr-defined]
        return gathered

    return canonical_weights(state.model, whole)

"""The canonical stream of weights: Hugging Face names, one tensor at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.models.names import canonical_weights

if TYPE_CHECKING:
    from swift.backends.torch.shard import TorchState
    from swift.contracts import WeightStream


def stream(state: TorchState) -> WeightStream:
    """Yield views of the live tensors: every process has all of them."""
    return canonical_weights(state.model)

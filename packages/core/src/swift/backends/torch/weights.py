"""The canonical stream of weights: Hugging Face names, one tensor at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.models.names import canonical_weights

if TYPE_CHECKING:
    from swift.backends.torch.state import TorchState
    from swift.contracts import WeightStream


def stream(state: TorchState) -> WeightStream:
    """Yield every weight, whole. Collective: every process must read the stream to its end."""
    return canonical_weights(state.model, state.whole)

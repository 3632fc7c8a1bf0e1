"""The canonical stream of weights: each tensor is gathered for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.toolkit import canonical_weights

if TYPE_CHECKING:
    from swift.contracts import WeightStream
    from swift_backend_deepspeed.shard import DeepSpeedState


def stream(state: DeepSpeedState) -> WeightStream:
    """Yield every weight. Collective: every process must read the stream to its end."""
    yield from canonical_weights(state.model, state.gather)
    state.partitions.release()

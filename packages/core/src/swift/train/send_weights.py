"""From training to an inference engine: weights on their way from any backend."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from swift.contracts import InferenceEngine, ModelSource, WeightStream
from swift.models.adapter_file import kind_of
from swift.models.low_bit import LowBitSource
from swift.models.merge import merged
from swift.models.reordered import as_stored
from swift.models.source import reordered_in


def whole_weights(weights: WeightStream, *, source: ModelSource, adapter: Mapping[str, Any] | None) -> WeightStream:
    """Stream every weight of the model from what `swift_iter_weights` streams, as the files of `source` have them.

    Where adapters are trained (`adapter` is their PEFT configuration), they are merged into the weights of `source`,
    one at a time.
    """
    return as_stored(reordered_in(source), weights if adapter is None else merged(source, weights, adapter))


def send_weights(
    engine: InferenceEngine | None,
    weights: WeightStream,
    *,
    source: ModelSource,
    adapter: Mapping[str, Any] | None,
    version: int,
) -> None:
    """Update an engine to the weights in training, and tell it their version: how many steps have made them.

    Called on every process of a run, since the stream may use collectives: each with an engine of its own, or None. No
    process holds more than the stream's one tensor at a time, or, where adapters are trained, these. An engine that
    takes adapters is sent nothing but LoRA's, unless they are trained on low-bit weights, which it has not; others
    get them merged into the weights of `source`.
    """
    try:
        if engine is not None:
            takes = getattr(engine, "takes_adapters", False) and not isinstance(source, LowBitSource)
            if takes and adapter is not None and kind_of(adapter) == "LORA":
                engine.update_adapter(weights, adapter)  # type: ignore[attr-defined]
            else:
                engine.update_weights(whole_weights(weights, source=source, adapter=adapter))
            if hasattr(engine, "version"):
                engine.version = version
    finally:
        # After a failure too: the other processes may be inside the stream's collectives.
        deque(weights, maxlen=0)

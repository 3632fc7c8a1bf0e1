"""Messages that come of cut layers, sequences and experts: counted from the layout, by one process a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from swift.contracts import Traffic

if TYPE_CHECKING:
    from swift.contracts import ProcessLayout
    from swift_plan.shape import ModelShape
    from swift_plan.workload import Workload


def model_traffic(
    shape: ModelShape, layout: ProcessLayout, workload: Workload, tokens: float, layers: int, *, recompute: bool
) -> Iterator[Traffic]:
    """Yield the messages of one micro-batch of so many tokens through so many layers, forward and backward."""
    size = workload.compute_bytes
    hidden = tokens * shape.hidden * size
    passes = 3 if recompute else 2
    # Embedding and head exchange as much as half a layer each; a stage within the pipeline has neither.
    times = passes * 2 * layers + (2 if layout.pp == 1 else 1)
    if layout.tp > 1:
        if layout.sequence_parallel:
            for operation in ("all_gather", "reduce_scatter"):
                yield Traffic(
                    f"sequence parallel {operation}", operation, times * hidden, layout.tp, calls=times
                )  # fmt: skip
        else:
            yield Traffic("tensor parallel", "all_reduce", times * hidden, layout.tp, calls=times)
    if layout.ulysses > 1:
        around = tokens * size * (2 * shape.queries + 2 * shape.keys) / layout.tp
        yield Traffic(
            "ulysses", "all_to_all", passes * layers * around, layout.ulysses, layout.tp, calls=passes * 4 * layers
        )
    if layout.cp > 1:
        keys = tokens * size * 2 * shape.keys / layout.tp
        # Keys and values go around the ring while attention is computed; on the way back their gradients go with them.
        yield Traffic(
            "context parallel", "send", (passes - 1 + 2) * layers * keys * (layout.cp - 1), layout.cp,
            layout.tp * layout.ulysses, calls=(passes - 1 + 2) * layers * (layout.cp - 1), hidden=0.7,
        )  # fmt: skip
    if layout.ep > 1:
        dealt = hidden * shape.experts_per_token / layout.tp
        mixed = min(layers, shape.expert_layers)
        yield Traffic(
            "experts", "all_to_all", passes * 2 * mixed * dealt, layout.ep, layout.etp, calls=passes * 2 * mixed
        )
    if layout.etp > 1:
        # Every process of the group computes a part of each expert, and needs all of the tokens for it.
        dealt = hidden * shape.experts_per_token * layout.etp / layout.tp
        mixed = min(layers, shape.expert_layers)
        yield Traffic(
            "tokens for parts of experts", "all_gather", passes * mixed * dealt, layout.etp, calls=passes * mixed
        )
        yield Traffic("results of parts", "reduce_scatter", passes * mixed * dealt, layout.etp, calls=passes * mixed)
    if layout.pp > 1:
        cut = layout.tp if layout.sequence_parallel else 1
        apart = layout.world // layout.pp
        yield Traffic("pipeline", "send", 2 * layout.vpp * hidden / cut, layout.pp, apart, calls=2 * layout.vpp)

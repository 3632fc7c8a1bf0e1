"""Compare packed training of a tiny Qwen3.5, which calls its linear attention sample by sample, with padded batches.

Packed, swift alternates step by step with a bare loop over padded batches, within one process; only real tokens count.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.alternation import loss_difference, ratios, summary, turns
from benchmarks.commands import PACKED, PADDED, TRAINING
from benchmarks.facts import Figure
from benchmarks.inputs import HYBRID, ensure_hybrid


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure_hybrid()
    steps = 25 if quick else 105
    packed = turns("packed", steps, *PACKED, model=HYBRID)
    padded = turns("padded", 15 if quick else 25, *PADDED, model=HYBRID)
    figures = [
        Figure("hybrid, packed: real tokens/s over the bare padded loop's", median(ratios(packed)), at_least=1.5),
        Figure("hybrid, padded: largest relative difference of the loss", loss_difference(padded), "", at_most=1e-5),
    ]
    details = {"arguments": {"both": TRAINING, "packed": PACKED, "padded": PADDED}, "steps": steps}
    return figures, {**details, "packed": summary(packed)}

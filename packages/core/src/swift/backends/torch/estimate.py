"""Memory and traffic of a process, counted before anything is built. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swift.backends.torch.config import TorchConfig
from swift.contracts import LocalWeights, RequestedRun
from swift.contracts.layout import GROWING, Traffic


def estimate_memory(run: RequestedRun, weights: LocalWeights) -> Mapping[str, float]:
    """Every process keeps all of it; autocast keeps copies of weights in the precision of the arithmetic."""
    casts = weights.compute_bytes if weights.compute_bytes < 4 else 0.0
    return {
        "weights": 4 * weights.trained + weights.frozen_bytes * weights.frozen,
        "casts of weights": casts * weights.trained,
        # DDP keeps its buckets from step to step.
        "gradients" if run.world.size > 1 else GROWING + "gradients": 4 * weights.trained,
        "optimizer": weights.slot_bytes * weights.trained,
    }


def estimate_traffic(run: RequestedRun, weights: LocalWeights, micro_batches: int) -> Sequence[Traffic]:
    """Gradients are added up once a step, in buckets, during the last backward pass."""
    size = 4 * weights.trained
    calls = max(1.0, size / (run.options(TorchConfig).bucket_mb * 2**20))
    return [Traffic("gradients", "all_reduce", size, run.world.size, calls=calls, hidden=0.8 / micro_batches)]

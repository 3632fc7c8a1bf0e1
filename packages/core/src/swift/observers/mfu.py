"""Model FLOPs utilisation: the share of the hardware's peak that training arithmetic takes.

A token costs 2 FLOPs per weight forward, 2 backward for activations, and 2 more for weights that are trained: the
usual 6N where all are. Attention's own products and recomputation are left out, as is the custom.
"""

from __future__ import annotations

from collections.abc import Callable

from swift.contracts import Run
from swift.hardware import device_called


def mfu_of(run: Run) -> Callable[[float], float | None]:
    """Tokens per second → share of the peak of all devices of the run, or None where something is not known.

    A token is taken to pass through all weights.
    """
    model, peak = run.facts.model, _peak_flops(run)
    if model is None or peak is None:
        return lambda tokens_per_second: None
    flops_per_token = 4 * model.parameters + 2 * model.trainable
    return lambda tokens_per_second: tokens_per_second * flops_per_token / peak


def _peak_flops(run: Run) -> float | None:
    """Return the peak of all processes' devices together; None for unknown hardware or precision."""
    on_gpu = run.topology.device.startswith("cuda")
    if not on_gpu or run.facts.model is None or run.facts.model.precision not in ("bfloat16", "float16"):
        return None
    import torch

    device = torch.cuda.get_device_name()
    facts = device_called(device)
    return facts.tflops * 1e12 * run.world.size if facts is not None else None

"""How much memory this process has needed at most."""

from __future__ import annotations

import resource
import sys

import torch


def peak_memory_gib(device: str) -> float:
    """Peak of the device's allocator, or of the process where it trains on the CPU."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device) / 2**30
    # Linux counts KiB, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30

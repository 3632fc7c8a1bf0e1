"""Kernels of swift's own for NVIDIA's GPUs, in Triton. This module can be imported where there is no Triton.

What calls them does the same without them, by torch's operators: on a CPU, and as what they are tested against.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def kernels_for(tensor: torch.Tensor) -> bool:
    """Return whether Triton's kernels run where a tensor is."""
    return tensor.is_cuda and _has_triton()


@cache
def _has_triton() -> bool:
    import torch

    return torch.version.hip is None and find_spec("triton") is not None

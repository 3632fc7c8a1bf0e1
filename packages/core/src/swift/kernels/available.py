"""Whether kernels can be used. Importable without Triton."""

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

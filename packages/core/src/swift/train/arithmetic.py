"""torch's settings of a whole process that a run may ask for: TF32, and deterministic kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from swift.config.sections import TrainSection


@contextmanager
def arithmetic(train: TrainSection, device: str, say: Callable[[str], None]) -> Iterator[None]:
    """Set what `train.tf32` and `train.deterministic` ask for, and put back what was there before."""
    with ExitStack() as before:
        if train.tf32 is not None and device.startswith("cpu"):
            say("train.tf32 is about GPUs and has no effect on the CPU.")
        elif train.tf32 is not None:
            before.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high" if train.tf32 else "highest")
        if train.deterministic:
            # Read when cuBLAS is used first; one of the two values with which it is deterministic.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")
            before.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
            torch.use_deterministic_algorithms(True)
        yield

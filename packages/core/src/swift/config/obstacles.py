"""Why a run cannot go on here, in the words that all places use which find it out, with torch or without."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from swift.errors import ConfigError, ModelError, SwiftError

_GPU_NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")
"""Of NVIDIA's driver, of AMD's, and of either under Windows."""


def no_gpu_to_see(device: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a run is certain to be on the CPU; False where only torch would know."""
    if device == "cpu" or environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return True
    return sys.platform == "linux" and not any(Path(node).exists() for node in _GPU_NODES)


def endless_stream() -> SwiftError:
    """Return the error for a stream whose end nobody knows."""
    return ConfigError(
        "data.streaming reads the data set while training, so nobody knows how many steps an epoch has.",
        hint="Say how many to make: --train.max_steps N",
    )


def unsplit_stream() -> SwiftError:
    """Return the error for holding out a part of a stream."""
    return ConfigError(
        "data.split_ratio needs the whole data set, and data.streaming does not read it beforehand.",
        hint="Name a validation set with --data.validation, or leave one of the two out.",
    )


def no_liger() -> SwiftError:
    """Return the error for Liger kernels that are not installed."""
    return ModelError(
        "model.liger is on, but liger-kernel is not installed.", hint='Type: pip install "swift-core[liger]"'
    )


def no_bitsandbytes() -> SwiftError:
    """Return the error for the 8-bit optimizer without its package."""
    return ConfigError(
        "optim.name adamw_8bit needs bitsandbytes, which is not installed.",
        hint='Type: pip install "swift-core[qlora]"   or choose --optim.name adamw',
    )


def gpu_optimizer() -> SwiftError:
    """Return the error for the 8-bit optimizer on the CPU."""
    return ConfigError(
        "optim.name adamw_8bit has kernels for GPUs only, and this run is on the CPU.",
        hint="Choose --optim.name adamw",
    )


def no_flash(obstacle: str) -> SwiftError:
    """Return the error for FlashAttention where something is in its way."""
    return ModelError(
        f"model.attention flash_attention_2 cannot be used: {obstacle}.",
        hint="Type --model.attention auto, or on a GPU: pip install 'swift-core[flash-attn]'",
    )


def flash_needs_gpu(device: str) -> str:
    """Return what is in FlashAttention's way on a device that is no GPU."""
    return f"it needs an NVIDIA GPU, and this run is on {device}"

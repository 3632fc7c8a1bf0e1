"""Why a run cannot go on here, in the words that all places use which find it out, with torch or without."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from swift.config.own_options import FACTORED
from swift.errors import ConfigError, ModelError, SwiftError, UnsupportedLayout, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection

    from swift.config.sections import Config

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


def no_flash(incompatibility: str) -> SwiftError:
    """Return the error for FlashAttention where something is in its way."""
    return ModelError(
        f"model.attention flash_attention_2 cannot be used: {incompatibility}.",
        hint="Type --model.attention auto, or on a GPU: pip install 'swift-core[flash-attn]'",
    )


def flash_needs_gpu(device: str) -> str:
    """Return what is in FlashAttention's way on a device that is no GPU."""
    return f"it needs an NVIDIA GPU, and this run is on {device}"


def no_cuda() -> SwiftError:
    """Return the error for a GPU that is asked for and is not there."""
    return UnsupportedLayout(
        "backend.device is cuda, but no NVIDIA GPU can be used here.", hint="Leave it out to train on the CPU."
    )


def no_quantiser(package: str) -> SwiftError:
    """Return the error for quantised weights without the package that stores them."""
    return ModelError(
        f"tuner.quantize needs {package}, which is not installed or does not fit this torch.",
        hint='Type: pip install "swift-core[qlora]"',
    )


def trained_in_low_bit(quantize: str) -> SwiftError:
    """Return the error for training all weights where they are stored in few bits."""
    return ConfigError(
        f"tuner.quantize {quantize} stores weights that cannot be trained, and tuner.kind is full.",
        hint="Use --tuner.kind lora, or --tuner.quantize none.",
    )


def partly_quantized(quantize: str, share: str) -> SwiftError:
    """Return the error of `--strict` for QLoRA that leaves matrices of the model's layers in 16 or 32 bits."""
    return ConfigError(
        f"tuner.quantize {quantize} leaves a part of the model out, and data.strict is true: {share}.",
        hint="Leave --strict out to train with this, or type --train_type lora.",
    )


def adapter_without_lora() -> SwiftError:
    """Return the error for continuing from an adapter where all weights are trained."""
    return ConfigError("tuner.adapter continues from an adapter, and tuner.kind is full.", hint="Use lora.")


def misfit_of_start(init: str, quantize: str) -> SwiftError | None:
    """Return the error for adapters that begin with what the weights, as they are stored, do not have."""
    if init in FACTORED and quantize != "none":
        return ConfigError(
            f"tuner.init {init} takes factors out of weights, and tuner.quantize {quantize} stores them in few bits.",
            hint="Type --tuner.init loftq, --tuner.quantize none, or --tuner.init default.",
        )
    if init == "loftq" and quantize in ("none", "bnb-int8"):
        return ConfigError(
            f"tuner.init loftq begins with what weights lose in 4 bits, and tuner.quantize is {quantize}.",
            hint="Type --tuner.quantize bnb-nf4, or --tuner.init default.",
        )
    return None


def started_twice(init: str) -> SwiftError:
    """Return the error for continuing from an adapter that is to begin anew."""
    return ConfigError(
        f"tuner.adapter continues from an adapter, and tuner.init {init} begins a new one.", hint="Leave one out."
    )


def no_such_module(target: str, modules: Collection[str]) -> SwiftError:
    """Return the error for an adapter on modules that the model does not have."""
    return ConfigError(
        f"tuner.targets: this model has no module {target!r}.{did_you_mean(target, modules)}",
        hint="Name modules such as q_proj, or all-linear.",
    )


def uneven_batch(rows: int, data_size: int) -> SwiftError | None:
    """Return the error for rows of a global batch that processes cannot share evenly."""
    if rows % data_size == 0:
        return None
    return ConfigError(
        f"{rows} rows per optimizer step cannot be divided evenly over {data_size} processes.",
        hint=f"Type --train.global_batch {-(-rows // data_size) * data_size}, or change the number of processes.",
    )


NAME_A_VALIDATION_SET = "Name one with --val_dataset, or hold a part out: --split_dataset_ratio 0.05"


def never_evaluated(config: Config, *, no_data: bool) -> SwiftError | None:
    """Return the error for what needs evaluations in a run that has none, for lack of data or by `eval_strategy`."""
    waiting = {
        "train.early_stopping": config.train.early_stopping is not None,
        "checkpoint.save_strategy best": config.checkpoint.save_strategy == "best",
    }
    reason = "there is no validation set" if no_data else "train.eval_strategy is no"
    for key, waits in waiting.items():
        if waits:
            return ConfigError(
                f"{key} waits for better evaluations, and {reason}.",
                hint=NAME_A_VALIDATION_SET if no_data else "Type --eval_strategy epoch, or --eval_steps N.",
            )
    return None

"""Errors for settings that exclude each other or this machine, shared by the checks with and without torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from swift.config.own_options import FACTORED
from swift.errors import ConfigError, ModelError, SwiftError, UnsupportedLayout, did_you_mean
from swift.installation import pip_install

if TYPE_CHECKING:
    from collections.abc import Collection

    from swift.config.sections import Config

_GPU_NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")
"""Device files of NVIDIA's driver, of AMD's, and of either under WSL."""


def no_gpu_to_see(device: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a run will certainly use the CPU; False where only torch can tell."""
    if device == "cpu" or environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return True
    return sys.platform == "linux" and not any(Path(node).exists() for node in _GPU_NODES)


def endless_stream() -> SwiftError:
    """Return the error for a stream without a number of steps."""
    return ConfigError(
        "data.streaming needs train.max_steps: the length of an epoch is unknown.", hint="Type --train.max_steps N."
    )


def unsplit_stream() -> SwiftError:
    """Return the error for holding out a part of a stream."""
    return ConfigError(
        "data.split_ratio cannot be used with data.streaming, which does not read the whole data set first.",
        hint="Use --data.validation FILE, or leave one of the two out.",
    )


def no_liger() -> SwiftError:
    """Return the error for Liger kernels that are not installed."""
    return ModelError(
        "model.liger is on, but liger-kernel is not installed.", hint=f"Type: {pip_install('swift-core[liger]')}"
    )


GPU_ATTENTION = ("flash_attention_3", "flash_attention_2", "flex_attention")
"""Attention kernels that train on a GPU only, the fastest first."""


def no_attention(name: str, incompatibility: str) -> SwiftError:
    """Return the error for an attention kernel where it cannot be used."""
    other = ""
    if name == "flash_attention_3":
        other = ", or on a Hopper GPU install flash-attn-3"
    elif name == "flash_attention_2":
        other = f", or on a GPU: {pip_install('swift-core[flash-attn]')}"
    return ModelError(
        f"model.attention {name} cannot be used: {incompatibility}.", hint=f"Type --model.attention auto{other}"
    )


def attention_needs_gpu(device: str) -> str:
    """Return why such a kernel cannot be used on a device that is not a GPU."""
    return f"it needs an NVIDIA GPU, and the device is {device}"


def no_cuda() -> SwiftError:
    """Return the error for a requested GPU that does not exist."""
    return UnsupportedLayout(
        "backend.device is cuda, but no NVIDIA GPU is available.", hint="Leave it out to train on the CPU."
    )


def no_quantiser(package: str) -> SwiftError:
    """Return the error for quantized weights without the package that stores them."""
    return ModelError(
        f"tuner.quantize needs {package}, which is not installed or is incompatible with this torch.",
        hint=f"Type: {pip_install('swift-core[qlora]')}",
    )


def trained_in_low_bit(quantize: str) -> SwiftError:
    """Return the error for full training of quantized weights."""
    return ConfigError(
        f"tuner.kind full cannot train weights that tuner.quantize {quantize} stores.",
        hint="Type --tuner.kind lora, or --tuner.quantize none.",
    )


def partly_quantized(quantize: str, share: str) -> SwiftError:
    """Return the error of `--strict` for QLoRA that leaves matrices of the model's layers in 16 or 32 bits."""
    return ConfigError(
        f"tuner.quantize {quantize} does not quantize all layers, which data.strict true refuses: {share}.",
        hint="Leave --strict out to train anyway, or type --train_type lora.",
    )


def adapter_without_lora() -> SwiftError:
    """Return the error for continuing from an adapter where all weights are trained."""
    return ConfigError("tuner.adapter cannot be used with tuner.kind full.", hint="Type --tuner.kind lora.")


def misfit_of_start(init: str, quantize: str) -> SwiftError | None:
    """Return the error for an adapter initialization that the stored weights do not allow; None where they do."""
    if init in FACTORED and quantize != "none":
        return ConfigError(
            f"tuner.init {init} changes the base weights, and tuner.quantize {quantize} stores them quantized.",
            hint="Type --tuner.init loftq, --tuner.quantize none, or --tuner.init default.",
        )
    if init == "loftq" and quantize in ("none", "bnb-int8"):
        return ConfigError(
            f"tuner.init loftq needs weights quantized to 4 bits, and tuner.quantize is {quantize}.",
            hint="Type --tuner.quantize bnb-nf4, or --tuner.init default.",
        )
    return None


def started_twice(init: str) -> SwiftError:
    """Return the error for a new initialization of an adapter that is to be continued."""
    return ConfigError(
        f"tuner.adapter continues an adapter, and tuner.init {init} initializes a new one.",
        hint="Leave one of them out.",
    )


def no_such_module(target: str, modules: Collection[str]) -> SwiftError:
    """Return the error for an adapter on modules that the model does not have."""
    return ConfigError(
        f"tuner.targets: the model has no module {target!r}.{did_you_mean(target, modules)}",
        hint="Use names of modules such as q_proj, or all-linear.",
    )


def uneven_batch(rows: int, data_size: int) -> SwiftError | None:
    """Return the error for a global batch that is not a multiple of the data-parallel size; None where it is."""
    if rows % data_size == 0:
        return None
    return ConfigError(
        f"train.global_batch {rows} cannot be divided evenly over {data_size} processes.",
        hint=f"Type --train.global_batch {-(-rows // data_size) * data_size}, or change the number of processes.",
    )


NAME_A_VALIDATION_SET = "Type --val_dataset FILE, or hold out a part: --split_dataset_ratio 0.05"


def never_evaluated(config: Config, *, no_data: bool) -> SwiftError | None:
    """Return the error for a setting that needs evaluations in a run without any, for lack of data or by strategy."""
    needed = {
        "train.early_stopping": config.train.early_stopping is not None,
        "checkpoint.save_strategy best": config.checkpoint.save_strategy == "best",
    }
    reason = "there is no validation set" if no_data else "train.eval_strategy is no"
    for key, is_set in needed.items():
        if is_set:
            return ConfigError(
                f"{key} needs evaluations, and {reason}.",
                hint=NAME_A_VALIDATION_SET if no_data else "Type --eval_strategy epoch, or --eval_steps N.",
            )
    return None

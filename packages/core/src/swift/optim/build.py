"""Parameter groups and optimizers, shared by all backends that use torch's.

A backend calls `parameter_groups` on whatever holds its weights, `build_optimizer` on the groups, and
`set_learning_rate` with `run.schedule(step)` before every update.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from swift.errors import ConfigError
from swift.models.names import whole_shape

if TYPE_CHECKING:
    from swift.config.sections import OptimSection, TunerSection

LORA_B_MARKERS = (".lora_B.", ".lora_embedding_B.")


def parameter_groups(
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]], optim: OptimSection, tuner: TunerSection
) -> list[dict[str, Any]]:
    """Trainable parameters, grouped by weight decay and by learning rate.

    Weight decay falls on matrices (embeddings included), not on biases and norms: what has fewer than two dimensions.
    Under LoRA+ the B matrices learn `tuner.lora_plus_ratio` times as fast. Every group has `lr_scale`, the factor on
    the scheduled learning rate, and `names` in the order of `params`. Shapes are those of whole parameters,
    wherever a backend has put their parts.
    """
    members: dict[tuple[bool, float], tuple[list[str], list[torch.nn.Parameter]]] = {}
    for name, parameter in named_parameters:
        if not parameter.requires_grad:
            continue
        faster = tuner.lora_plus_ratio is not None and any(marker in name for marker in LORA_B_MARKERS)
        scale = tuner.lora_plus_ratio if faster and tuner.lora_plus_ratio is not None else 1.0
        names, parameters = members.setdefault((len(whole_shape(parameter)) >= 2, scale), ([], []))
        names.append(name)
        parameters.append(parameter)
    return [
        {
            "params": parameters,
            "names": names,
            "weight_decay": optim.weight_decay if decays else 0.0,
            "lr_scale": scale,
        }
        for (decays, scale), (names, parameters) in members.items()
    ]


def build_optimizer(
    groups: Sequence[dict[str, Any]], optim: OptimSection, lr: float, device: torch.device | str
) -> torch.optim.Optimizer:
    """The optimizer that the `optim` section names, over `parameter_groups`, at learning rate `lr`."""
    # Torch reads 'names' as a request of its own (param_names), which other optimizers refuse.
    plain = [{key: value for key, value in group.items() if key != "names"} for group in groups]
    maker = {"adamw": _adamw, "adamw_8bit": _adamw_8bit, "adafactor": _adafactor}[optim.name]
    optimizer = maker(plain, optim, lr, torch.device(device))
    set_learning_rate(optimizer, lr)
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the scheduled learning rate, times the factor of each group."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)


def _adamw(groups: list[dict[str, Any]], optim: OptimSection, lr: float, device: torch.device) -> torch.optim.Optimizer:
    parameters = [parameter for group in groups for parameter in group["params"]]
    # The fused kernel exists for CPU and CUDA, for floating-point tensors that all lie on that device.
    fused = device.type in ("cpu", "cuda") and all(
        parameter.device.type == device.type and parameter.is_floating_point() for parameter in parameters
    )
    return torch.optim.AdamW(groups, lr=lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=fused)


def _adamw_8bit(
    groups: list[dict[str, Any]], optim: OptimSection, lr: float, device: torch.device
) -> torch.optim.Optimizer:
    try:
        import bitsandbytes
    except ImportError as error:
        raise ConfigError(
            "optim.name adamw_8bit needs bitsandbytes, which is not installed.",
            hint='Type: pip install "swift-core[qlora]"   or choose --optim.name adamw',
        ) from error
    if device.type == "cpu":
        raise ConfigError(
            "optim.name adamw_8bit has kernels for GPUs only, and this run is on the CPU.",
            hint="Choose --optim.name adamw",
        )
    optimizer: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(
        groups, lr=lr, betas=(optim.beta1, optim.beta2), eps=optim.eps
    )
    return optimizer


def _adafactor(
    groups: list[dict[str, Any]], optim: OptimSection, lr: float, device: torch.device
) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(groups, lr=lr)

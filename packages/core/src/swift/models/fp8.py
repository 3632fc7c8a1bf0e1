"""Matrix products in FP8, by torchao: weights, optimizer and checkpoints stay what they are without it.

Inputs, weights and gradients are rounded to eight bits where they are multiplied, each tensor with one scale of the
moment. What is emulated rounds in the same way and multiplies in higher precision: the numbers of FP8 on any device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from swift.config.incompatibilities import no_gpu_to_see
from swift.contracts import RequestedRun, Run
from swift.errors import ModelError, UnsupportedLayout
from swift.installation import pip_install
from swift.plugins.tuner import tuner_of

if TYPE_CHECKING:
    import torch
    from torch import nn

MULTIPLE = 16
"""Both sides of a matrix must be a multiple of this, or its layer stays as it is."""
_OLDEST = (8, 9)
"""The compute capability of the first GPUs with FP8: Ada and Hopper."""


def fp8_of(run: RequestedRun) -> str | None:
    """Return the format of FP8 in a run whose backend offers it: 'hybrid' or 'e4m3'; None where it is off."""
    kind = getattr(run.config.backend, "fp8", "none")
    return None if kind == "none" else str(kind)


def check_fp8(run: RequestedRun) -> None:
    """Refuse FP8 where it cannot be honoured, before anything is set up."""
    if fp8_of(run) is None:
        return
    config, without = run.config, "--backend.fp8 none"
    if tuner_of(config.tuner).adapter:
        raise UnsupportedLayout(
            "backend.fp8 needs full-parameter training: with adapters, torchao's layers would also compute "
            "gradients of the frozen weights and be slower.",
            hint=f"Type {without}, or --train_type full",
        )
    if config.parallel.tp > 1:
        raise UnsupportedLayout(
            "backend.fp8 computes one scale per whole matrix, so it does not work with tensor parallelism.",
            hint=f"Type --parallel.tp 1, or {without}",
        )
    if config.model.dtype not in ("auto", "bfloat16"):
        raise UnsupportedLayout(
            f"backend.fp8 needs --torch_dtype bfloat16, not {config.model.dtype}.",
            hint=f"Type --torch_dtype bfloat16, or {without}",
        )
    if not run.planned_only and not _emulated(run) and no_gpu_to_see(getattr(config.backend, "device", "auto")):
        raise UnsupportedLayout(
            "backend.fp8 needs a GPU of the Ada or Hopper generation or later, and this run is on the CPU.",
            hint=f"Type {without}, or emulate FP8 (slow) with --backend.fp8_emulated true",
        )


def use_fp8(run: Run, model: nn.Module, blocks: Iterable[nn.Module]) -> None:
    """Let the linear layers of a model's blocks multiply in FP8 if the run says so; not those of unfit sizes."""
    kind = fp8_of(run)
    if kind is None:
        return
    try:
        from torchao.float8 import CastConfig, Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise ModelError(
            "backend.fp8 needs torchao, which is not installed or not compatible with this torch.",
            hint=f"Type: {pip_install('swift-core[fp8]')}",
        ) from error
    emulated = _emulated(run)
    if not emulated:
        _check_device(run.topology.device)
    import torch

    gradients: Any = CastConfig(target_dtype=torch.float8_e4m3fn if kind == "e4m3" else torch.float8_e5m2)
    config = Float8LinearConfig(cast_config_grad_output=gradients, pad_inner_dim=True, emulate=emulated)
    chosen = frozenset(layers_in_fp8(model, blocks))
    if not chosen:
        raise ModelError(
            f"FP8 needs linear layers whose dimensions are multiples of {MULTIPLE}; {type(model).__name__} has none.",
            hint="Type --backend.fp8 none",
        )
    convert_to_float8_training(model, module_filter_fn=lambda _, path: path in chosen, config=config)
    run.say(f"fp8 {kind}{' (emulated)' if emulated else ''}: {len(chosen)} linear layers")


def layers_in_fp8(model: nn.Module, blocks: Iterable[nn.Module]) -> list[str]:
    """Return the paths of the layers that multiply in FP8: linear ones within blocks, of fitting sizes."""
    import torch

    within = {module for block in blocks for module in block.modules()}
    return [
        path
        for path, module in model.named_modules()
        if type(module) is torch.nn.Linear
        and module in within
        and not (module.in_features % MULTIPLE or module.out_features % MULTIPLE)
    ]


@contextmanager
def without_fp8(model: nn.Module) -> Iterator[None]:
    """Let a model multiply as it does without FP8 for a while.

    For comparing layouts of batches: with FP8, what lies beside a sample decides on the scale of its numbers.
    """
    from torch.nn import Linear

    layers: list[Any] = [
        module
        for module in model.modules()
        if any(each.__name__ == "Float8Linear" for each in type(module).__mro__) and "forward" not in vars(module)
    ]
    for layer in layers:
        layer.forward = partial(Linear.forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _emulated(run: RequestedRun) -> bool:
    return bool(getattr(run.config.backend, "fp8_emulated", False))


def _check_device(device: torch.device | str) -> None:
    import torch

    if torch.device(device).type != "cuda" or torch.cuda.get_device_capability(device) < _OLDEST:
        name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "the CPU"
        raise UnsupportedLayout(
            f"backend.fp8 needs a GPU of the Ada or Hopper generation or later, and this run is on {name}.",
            hint="Type --backend.fp8 none",
        )

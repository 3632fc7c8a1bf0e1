"""FP8 by Transformer Engine: what a plan must be for it, and what Megatron is told.

Each tensor gets one scale of the moment (`tensorwise`), as torchao gives it on the other backends: no history of scales
has to be kept in checkpoints. Weights, master weights and optimizer stay what they are without it.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

from packaging.version import Version

from swift.contracts import RequestedRun
from swift.errors import UnsupportedLayout
from swift.installation import pip_install
from swift_backend_megatron.config import MegatronConfig

MULTIPLE = 16
"""Sides of matrices, and the tokens that a process has of a micro-batch, must be a multiple of this."""
_OLDEST_GPU = (8, 9)
"""The compute capability of the first GPUs with FP8: Ada and Hopper."""
_OLDEST_ENGINE = Version("2.2")
"""The first Transformer Engine that scales by the tensor of the moment."""
ENGINE = ("--no-build-isolation", "transformer-engine[pytorch]")
"""What installs Transformer Engine."""
_WITHOUT = "Type --backend.fp8 none"


def settings_of(options: MegatronConfig) -> dict[str, Any]:
    """Return the fields of Megatron's `TransformerConfig` for it."""
    return {} if options.fp8 == "none" else {"fp8": options.fp8, "fp8_recipe": "tensorwise"}


def tokens_multiple(options: MegatronConfig) -> int:
    """Return what the number of tokens that a matrix product has must be a multiple of."""
    return 1 if options.fp8 == "none" else MULTIPLE


def check_fp8(run: RequestedRun, options: MegatronConfig) -> None:
    """Refuse it on machines and in precisions without it, before anything is set up."""
    if options.fp8 == "none":
        return
    if not run.planned_only:
        _check_machine()
    if run.config.model.dtype not in ("auto", "bfloat16"):
        raise UnsupportedLayout("backend.fp8 goes with --torch_dtype bfloat16.", hint="Type --torch_dtype bfloat16")


def _check_machine() -> None:
    import torch

    needs = "backend.fp8 needs Transformer Engine on a GPU of the Ada or Hopper generation or later"
    if not torch.cuda.is_available():
        raise UnsupportedLayout(f"{needs}; this machine has no GPU.", hint=_WITHOUT)
    if torch.cuda.get_device_capability() < _OLDEST_GPU:
        raise UnsupportedLayout(f"{needs}, and this run is on {torch.cuda.get_device_name()}.", hint=_WITHOUT)
    check_engine(needs)


def check_engine(needs: str) -> None:
    """Refuse a machine whose Transformer Engine is missing, or too old to scale as we ask it to."""
    try:
        there = metadata.version("transformer-engine")
    except metadata.PackageNotFoundError:
        raise UnsupportedLayout(
            f"{needs}, and it is not installed.",
            hint=f"Run: {pip_install(*ENGINE)}   or type {_WITHOUT[5:]}",
        ) from None
    if Version(there) < _OLDEST_ENGINE:
        raise UnsupportedLayout(
            f"backend.fp8 needs Transformer Engine {_OLDEST_ENGINE} or newer, and {there} is installed.",
            hint=f"Run: {pip_install(*ENGINE, upgrade=True)}",
        )


def check_widths(options: MegatronConfig, text: Any, tp: int) -> None:
    """Refuse a model whose matrices, as a process has them, have sides that FP8 cannot multiply."""
    if options.fp8 == "none":
        return
    for name, count in (("hidden_size", 1), ("intermediate_size", tp), ("moe_intermediate_size", tp)):
        width = getattr(text, name, None) or 0
        if width // count % MULTIPLE:
            part = f" by parallel.tp {count}" if count > 1 else ""
            raise UnsupportedLayout(
                f"backend.fp8 multiplies matrices whose sides are multiples of {MULTIPLE}, and {name} {width}{part} is "
                "not one.",
                hint=_WITHOUT,
            )

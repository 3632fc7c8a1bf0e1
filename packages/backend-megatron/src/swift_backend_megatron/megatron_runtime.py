"""Megatron-Core and mcore-bridge, imported: with Transformer Engine on a GPU, on the CPU layer (`cpu`) without one."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

from swift.errors import UnsupportedLayout
from swift.installation import pip_install
from swift_backend_megatron import cpu
from swift_backend_megatron.cpu.cuda_means_cpu import cuda_on_cpu
from swift_backend_megatron.cpu.patches import patch_rope
from swift_backend_megatron.fp8 import ENGINE


def prepare(say: Callable[[str], None]) -> str:
    """Make `megatron.core` and `mcore_bridge` ready to be imported; return the name of what computes the layers."""
    # Megatron calls collectives by the names that they had before torch 2.13.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    if cpu.needed():
        cpu.prepare()
        say("no GPU: Megatron runs on swift's portable layer, plain torch instead of Transformer Engine")
        return "portable layer (plain torch)"
    if importlib.util.find_spec("transformer_engine") is None:
        raise UnsupportedLayout(
            "Megatron's layers need Transformer Engine on a GPU, and it is not installed.",
            hint=f"Run: {pip_install(*ENGINE)}   or type --backend fsdp",
        )
    import mcore_bridge  # noqa: F401
    import transformer_engine

    patch_rope()
    return f"Transformer Engine {transformer_engine.__version__}"


def active() -> AbstractContextManager[None]:
    """Return the context in which Megatron's code runs: without a GPU, 'cuda' means the CPU inside."""
    return cuda_on_cpu() if cpu.needed() else contextlib.nullcontext()

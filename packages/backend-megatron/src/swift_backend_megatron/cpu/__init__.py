"""Megatron-Core without CUDA: its layers and mcore-bridge on the CPU, over gloo.

On a machine with CUDA the backend uses the real Transformer Engine, and of this package only `patches.patch_rope`.
Elsewhere `prepare` installs `transformer_engine`, modules of plain torch under Transformer Engine's names, applies
`patches` to megatron-core, and imports both; `cuda_means_cpu` makes the device 'cuda' the CPU while they run.

This proves nothing about the kernels of Transformer Engine, fp8, fused operations, communication that overlaps with
computation, NCCL, or bf16 to the last bit. What is missing here is refused or cannot be imported, never skipped
silently.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from swift.toolkit import without_bitsandbytes
from swift_backend_megatron.cpu import patches, transformer_engine
from swift_backend_megatron.cpu.cuda_means_cpu import cuda_on_cpu

_prepared = False


def needed() -> bool:
    """Return whether this machine has to do without CUDA."""
    return not torch.cuda.is_available()


def prepare() -> None:
    """Make megatron-core and mcore-bridge importable, and import them. Call this before anything else imports them."""
    global _prepared
    if _prepared:
        return
    early = sorted({"megatron.core", "mcore_bridge", "transformer_engine"} & sys.modules.keys())
    if early:
        raise RuntimeError(f"imported before swift_backend_megatron.cpu.prepare(): {', '.join(early)}")
    # Tensor and context parallelism insist on it.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    # They look for Transformer Engine when they are imported, and must not find the one of this package.
    with without_bitsandbytes():
        import peft  # noqa: F401
    import transformers  # noqa: F401

    transformer_engine.install()
    with (
        cuda_on_cpu(),
        _quietly("mcore_bridge"),
        # megatron-core decorates functions with it, and they would be compiled one by one when first called.
        mock.patch.object(torch, "compile", _undecorated),
    ):
        import megatron.core
        import megatron.core.jit

        # mcore-bridge declares neither `datasets` nor `PIL`, and imports both.
        patches.replace_triton_modules()
        import mcore_bridge

        for name in ("ModelConfig", "get_mcore_model", "hf_to_mcore_config", "GPTBridge"):
            getattr(mcore_bridge, name)
    megatron.core.jit.disable_jit_fuser()
    patches.patch_megatron()
    patches.patch_rope()
    _prepared = True


@contextmanager
def _quietly(name: str) -> Iterator[None]:
    """Silence Python warnings, and one logger below the level of warnings."""
    logger = logging.getLogger(name)

    def loud(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    logger.addFilter(loud)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeFilter(loud)


def _undecorated(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    """Stand for a decorator that changes nothing, with arguments or without."""
    return function if function is not None else _undecorated

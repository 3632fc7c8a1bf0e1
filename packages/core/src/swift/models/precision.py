"""In which precision a model computes, and in which its weights are stored.

Three precisions meet in training. *Masters*, which the optimizer updates, are always fp32: every trainable
weight is stored in fp32, adapters included. *Compute* is the precision of the arithmetic (`model.dtype`), entered
with autocast so that norms and losses stay in fp32. *Storage* of weights that are not trained follows compute, since
nothing updates them: the frozen base under LoRA takes half the memory in bf16. So a backend builds the model in fp32
for `tuner.kind: full` and in the compute precision otherwise, and `apply_tuner` makes masters of what is trained.
"""

from __future__ import annotations

import torch

from swift.contracts import Run
from swift.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Name in the configuration → precision of tensors."""


def resolve_dtype(requested: str, device: torch.device | str) -> tuple[str, str]:
    """Return the compute precision in force, 'float32', 'bfloat16' or 'float16', and why."""
    device = torch.device(device)
    if requested != "auto":
        if requested == "bfloat16" and device.type == "cuda" and not _has_bfloat16(device):
            name = torch.cuda.get_device_name(device)
            raise ConfigError(
                f"model.dtype is bfloat16, but {name} does not support bfloat16.",
                hint="Choose --model.dtype float16 or float32",
            )
        return requested, f"as requested{_slow_on(requested, device)}"
    if device.type != "cuda":
        return "float32", f"auto: there is no GPU ({device.type})"
    if _has_bfloat16(device):
        return "bfloat16", "auto: this GPU supports bfloat16"
    return "float32", "auto: this GPU does not support bfloat16"


def _slow_on(requested: str, device: torch.device) -> str:
    """Return a warning, as the end of a sentence, where a CPU has no instructions for a precision in 16 bits."""
    name = {"bfloat16": "bf16", "float16": "fp16"}.get(requested)
    supports = getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported", None)
    if name is None or device.type != "cpu" or supports is None or supports():
        return ""
    return "; slow: this CPU has no instructions for it. Faster: --torch_dtype float32"


def compute_dtype(run: Run) -> torch.dtype:
    """Return the compute precision of a run."""
    return DTYPES[resolve_dtype(run.config.model.dtype, run.topology.device)[0]]


def _has_bfloat16(device: torch.device) -> bool:
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))

"""The rules by which the articles choose and estimate, to be shown beside what was counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swift_plan.shape import ModelShape
    from swift_plan.workload import Workload


def estimate(shape: ModelShape, workload: Workload) -> str:
    """Return what the articles' formula says of the memory, with the formula."""
    billions = shape.parameters / 1e9
    if workload.quantize.endswith("4"):
        return f"QLoRA: {billions / 2 + 1:,.0f} GB (half a byte a weight, and 1 GB)"
    if workload.adapted:
        return f"LoRA: {2 * billions:,.0f} GB (2 bytes a weight)"
    return f"{4 * 3 * billions:,.0f} GB over all devices (weights × 4 bytes × 3)"


def layout(shape: ModelShape, workload: Workload) -> str:
    """Return which layout the articles' table names for a model of this size."""
    billions = shape.parameters / 1e9
    if billions < 7:
        return "LoRA and DDP" if workload.adapted else "DDP, or ZeRO-2"
    if billions <= 70:
        return "Megatron TP 4 to 8 and PP 2 to 4; first FSDP2 for adapters, ZeRO-3 for full fine-tuning"
    return "ZeRO-Infinity or FSDP"

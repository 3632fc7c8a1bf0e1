"""Advice on which settings to lower when memory does not suffice, with the values in force."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from swift_backend_deepspeed.ds_json import offload_device, stage_of

if TYPE_CHECKING:
    from swift.config.sections import Config

DEFAULTS = {
    "reduce_bucket_size": 500_000_000,
    "allgather_bucket_size": 500_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
}
"""Elements, as DeepSpeed sets them by itself."""


def to_save_memory(config: Config, content: dict[str, Any]) -> str:
    """Return one line, cheapest measures first."""
    return "In force, and to be lowered: " + "; ".join(_measures(config, content)) + "."


def _measures(config: Config, content: dict[str, Any]) -> Iterator[str]:
    train, zero, stage = config.train, content.get("zero_optimization", {}), stage_of(content)
    if train.micro_batch > 1:
        yield f"--train.micro_batch {train.micro_batch} (accumulation makes up for it)"
    if not train.gradient_checkpointing:
        yield "--gradient_checkpointing false (true recomputes activations)"
    for name, usual in DEFAULTS.items():
        if name.startswith("stage3_") == (stage == 3):
            yield f"{name} {zero.get(name, usual):,}"
    if stage < 3:
        yield f"stage {stage} (--deepspeed zero{stage + 1} shards more)"
    for part in ("offload_optimizer", "offload_param") if stage == 3 else ("offload_optimizer",):
        if offload_device(content, part) == "none" and stage > 0:
            yield f"{part} none (cpu takes it out of this device's memory)"

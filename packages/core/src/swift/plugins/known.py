"""Plugins that swift's own project publishes apart from core: what installs them, and what they are for."""

from __future__ import annotations

KNOWN: dict[str, dict[str, str]] = {
    "swift.backends": {"fsdp": "fsdp", "deepspeed": "deepspeed", "megatron": "megatron"},
    "swift.exporters": {"vllm": "vllm"},
    "swift.engines": {"vllm": "vllm"},
}
"""Group → plugin name → the extra of swift-core that brings it."""

PARALLEL_OFFERS: dict[str, tuple[str, ...]] = {
    "dp_shard": ("fsdp", "deepspeed"),
    "tp": ("megatron", "fsdp", "deepspeed"),
    "pp": ("megatron",),
    "vpp": ("megatron",),
    "cp": ("megatron", "fsdp"),
    "ep": ("megatron",),
    "etp": ("megatron",),
    "sequence_parallel": ("megatron",),
    "ulysses": ("fsdp", "deepspeed"),
}
"""Field of the parallel plan → backends of this project that are made for it, for advice when none is installed."""


def install_command(group: str, name: str) -> str | None:
    """Return the command that installs a known plugin; None for a name that this project does not publish."""
    extra = KNOWN.get(group, {}).get(name)
    return f'pip install "swift-core[{extra}]"' if extra else None

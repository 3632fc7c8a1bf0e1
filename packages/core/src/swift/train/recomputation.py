"""A note before the first step where a run cannot fit without recomputing activations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from swift.models.memory import available_bytes
from swift.models.sizes import config_of_layer, experts_of

if TYPE_CHECKING:
    from swift.train.job import Job

_GIB = 2.0**30


def recomputation_note(job: Job) -> str | None:
    """Return the note where activations that certainly must be kept exceed the free memory; None otherwise.

    It counts less than a step needs, so a run without the note may still run out of memory. The model is loaded, and
    gradients and optimizer state are not counted.
    """
    config, layout = job.run.config, job.topology.layout
    if config.train.gradient_checkpointing or config.train.compile or job.data.train is None:
        return None
    longest = int(job.data.train.samples.lengths.max(initial=0))
    tokens = longest if config.data.padding_free else longest * config.train.micro_batch
    model, facts = job.source.config.get_text_config(), job.run.facts.model
    size = 4.0 if facts is None or facts.precision.startswith("float32") else 2.0
    needed = kept_values(model) * tokens * size
    for dimension in ("tp", "pp", "cp", "ulysses"):
        needed /= layout.get(dimension, 1)
    free = _free_bytes(job.topology.device)
    if needed <= free:
        return None
    return (
        f"The activations of a micro-batch of {tokens:,} tokens take more than {needed / _GIB:.1f} GiB, and "
        f"{free / _GIB:.1f} GiB are free. Recompute them: --gradient_checkpointing true"
    )


def kept_values(text: Any) -> float:
    """Return how many values per token the layers of a decoder keep for the backward pass, at least; 0 if unknown.

    Of each layer: the inputs of both norms and of the matrices behind them, queries, keys, values, the result of
    attention, and of the MLP gate, up and their product. Frozen weights do not change it where adapters follow.
    """
    layers = getattr(text, "num_hidden_layers", None)
    return float(sum(_kept_by(config_of_layer(text, layer)) for layer in range(layers))) if layers else 0.0


def _kept_by(layer: Any) -> int:
    hidden, heads, width = (
        getattr(layer, name, None) for name in ("hidden_size", "num_attention_heads", "intermediate_size")
    )
    if not (isinstance(hidden, int) and isinstance(heads, int) and isinstance(width, int)):
        return 0
    if experts_of(layer):
        width = (getattr(layer, "moe_intermediate_size", None) or width) * (
            getattr(layer, "num_experts_per_tok", 1) or 1
        )
    head = getattr(layer, "head_dim", None) or hidden // heads
    key_heads = getattr(layer, "num_key_value_heads", None) or heads
    return 4 * hidden + 2 * (heads + key_heads) * head + 3 * width


def _free_bytes(device: str) -> int:
    if not device.startswith("cuda"):
        return available_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)

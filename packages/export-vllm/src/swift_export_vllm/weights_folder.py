"""A stream of weights as files, for a vLLM in other processes."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from swift.contracts import WeightStream

SHARD = 1 << 30
"""Bytes that are held in memory before they are written."""


def write_weights(weights: WeightStream, folder: Path, *, shard: int = SHARD) -> None:
    """Files of about `shard` bytes, in the order of the stream."""
    held: dict[str, torch.Tensor] = {}
    size = number = 0

    def write() -> None:
        nonlocal held, size, number
        number += 1
        save_file(held, folder / f"model-{number:05d}.safetensors")
        held, size = {}, 0

    for name, tensor in weights:
        # A copy: backends go on with the memory, and tensors that share some cannot be saved.
        held[name] = tensor.detach().to("cpu", copy=True).contiguous()
        size += held[name].nbytes
        if size >= shard:
            write()
    if held:
        write()

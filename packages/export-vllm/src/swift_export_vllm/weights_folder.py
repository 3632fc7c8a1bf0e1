"""Weights as files, for tensors whose sizes are known only when they come: a shard at a time is in memory."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from swift.contracts import WeightStream

SHARD = 1 << 30
"""Bytes of a stream of weights that are held in memory before they are written."""


class Shards:
    """Files get their final names when it is known how many there are."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self._folder = folder
        self._room = shard_bytes
        self._waiting: dict[str, torch.Tensor] = {}
        self._written: list[list[str]] = []
        self.bytes = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Write it with its shard."""
        if self._waiting and sum(each.nbytes for each in self._waiting.values()) + tensor.nbytes > self._room:
            self._flush()
        # A copy: backends go on with the memory, and tensors that share some cannot be saved.
        self._waiting[name] = tensor.detach().to("cpu", copy=True).contiguous()
        self.bytes += tensor.nbytes

    def finish(self) -> None:
        """Write the last shard, and the index where there are several."""
        self._flush()
        count = len(self._written)
        files: dict[str, str] = {}
        for at, names in enumerate(self._written):
            final = "model.safetensors" if count == 1 else f"model-{at + 1:05d}-of-{count:05d}.safetensors"
            self._part(at).rename(self._folder / final)
            files |= dict.fromkeys(names, final)
        if count > 1:
            index = {"metadata": {"total_size": self.bytes}, "weight_map": dict(sorted(files.items()))}
            text = json.dumps(index, indent=2) + "\n"
            (self._folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")

    def _flush(self) -> None:
        if self._waiting:
            save_file(self._waiting, self._part(len(self._written)), {"format": "pt"})
            self._written.append(list(self._waiting))
            self._waiting = {}

    def _part(self, at: int) -> Path:
        return self._folder / f"part-{at}.safetensors"


def write_weights(weights: WeightStream, folder: Path) -> None:
    """Write a stream of weights for a vLLM in other processes."""
    shards = Shards(folder, SHARD)
    for name, tensor in weights:
        shards.add(name, tensor)
    shards.finish()

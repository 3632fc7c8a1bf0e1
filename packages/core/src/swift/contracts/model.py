"""Where models come from, and weights on their way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class ModelSource(Protocol):
    """Where a model comes from, lazily: nothing big is read until a tensor is asked for by name.

    `swift.models.source` has the implementation for folders, hub ids and random weights.
    """

    @property
    def config(self) -> Any:
        """The transformers configuration."""

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""

    @property
    def fingerprint(self) -> str:
        """Changes when the weights or the architecture change."""

    @property
    def padding_row(self) -> int | None:
        """Row of the embedding that gets no gradient from inputs in transformers; None where each row gets its own."""

    def names(self) -> list[str]:
        """Hugging Face names of all weights, tied ones once."""

    def extra_names(self) -> list[str]:
        """Names of weights on disk that are no part of the model, which training leaves alone and exports keep."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one weight, without reading it."""

    def read(self, name: str) -> torch.Tensor:
        """Return one weight, or an extra one, from disk."""

    def build(self, *, dtype: torch.dtype, device: str = "cpu", weights: bool = True) -> torch.nn.Module:
        """Return the transformers module; with `weights=False` on the meta device, uninitialised."""

    def write_assets(self, folder: Path, dtype: str) -> None:
        """Put next to exported weights what makes them a model: config, generation config, tokenizer, template."""


WeightStream = Iterator[tuple[str, "torch.Tensor"]]
"""(Hugging Face name, whole tensor), one at a time: every weight of the model, or, where adapters are
trained, the adapters alone by their PEFT names."""

"""The model between `swift_wrap_model` and `swift_shard`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from swift.contracts import ModelSource
    from swift.toolkit import LogitTransform
    from swift_backend_megatron.tensor_map import TensorMap


@dataclass
class MegatronModel:
    """Chunks of layers without weights, and where each weight belongs in them."""

    chunks: list[Any]
    """Megatron's GPT models: one, or one per virtual stage."""
    config: Any
    """Megatron's configuration of the model."""
    tensor_map: TensorMap
    """By names on disk: of the model and, where adapters are trained, of the adapters too."""
    source: ModelSource
    dtype: torch.dtype
    vocabulary: int
    """Tokens; the embedding's rows beyond them are padding."""
    transform: LogitTransform
    unembeds: bool
    """Whether the model ends in logits over the vocabulary; otherwise in a head of its own, or in none."""
    pooling: str
    """Which hidden states make the vector of a segment; see `swift.models.pooling`."""
    towered: bool = False
    """Whether chunks have an encoder for images beside the language model."""
    sees: bool = False
    """Whether weights are trained that only images reach."""
    rates: dict[int, float] = field(default_factory=dict)
    """Factors on the learning rate, by the identity of Megatron's parameters; those that are not in it have 1."""
    adapter_tensors: frozenset[str] = frozenset()
    """Names on disk of all adapters, also of those that other processes have; empty where all weights are trained."""
    saved_with_adapters: dict[str, str] = field(default_factory=dict)
    """Those of them that are whole weights: name on disk → name of the weight that it starts from."""

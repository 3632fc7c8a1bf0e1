"""A small model with random weights for the comparison of Megatron with transformers (`self_check`).

It has the architecture and every setting of the model in training, with smaller matrices, fewer heads and only as many
layers as there are kinds of them, so that each process can hold all of it, whatever the size of the real model.
"""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import torch

from swift.config.sections import ParallelSection
from swift.contracts import ModelSource
from swift.toolkit import auto_class, name_map

HIDDEN = 256
"""Largest hidden size, where the size of a head does not follow from it."""
WIDTH = 32
"""Largest width of an MLP or expert, for each process that shares it."""
VOCABULARY = 256
"""Most tokens, for each process that shares them."""
WINDOW = 12
"""Largest sliding window: the probe is longer."""
_WIDTHS = (
    "intermediate_size",
    "intermediate_size_mlp",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
_EMBEDDING_STD = 0.02
"""Small, as in released models: the first norm divides by little, and another epsilon shows."""
_SEED = 20
_LAYER = re.compile(r"\blayers\.(\d+)\.(.+)")


class ProbeModel:
    """The transformers model on the CPU in fp32, and its weights by their names on disk, as a `ModelSource` has them.

    Values depend on nothing but the configuration: every process makes the same. They are numbers of bfloat16, so that
    no precision of a run rounds them.
    """

    padding_row = None
    """Of the embedding; it only has a gradient of its own, and none is computed here."""

    def __init__(self, config: Any, *, trust_remote_code: bool) -> None:
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            self.model: torch.nn.Module = (
                auto_class(config)
                .from_config(
                    config, dtype=torch.float32, attn_implementation="eager", trust_remote_code=trust_remote_code
                )
                .eval()
            )
            names = name_map(self.model)
            state = self.model.state_dict()
            embedding = self.model.get_input_embeddings().weight
            self._weights: dict[str, torch.Tensor] = {}
            for name in names.parameters():
                _fill(state[name], _EMBEDDING_STD if state[name].data_ptr() == embedding.data_ptr() else None)
                self._weights |= {piece.name: piece.view_of(state[name]) for piece in names.pieces(name)}

    def names(self) -> list[str]:
        """Return the names of all weights on disk."""
        return list(self._weights)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight."""
        return tuple(self._weights[name].shape)

    def read(self, name: str) -> torch.Tensor:
        """Return a weight."""
        return self._weights[name]


def probe_config(source: ModelSource, parallel: ParallelSection) -> Any:
    """Return the configuration of a model of the same architecture with small sizes that the layout divides."""
    config = copy.deepcopy(source.config)
    text = config.get_text_config()
    _keep_layers(text, max(_layers_of_all_kinds(text, source.names()), parallel.pp * parallel.vpp))
    _reduce_heads(text, parallel.tp)
    ways = math.lcm(parallel.tp, parallel.etp)
    for name in _WIDTHS:
        _lower(text, name, WIDTH * ways)
    _lower(text, "vocab_size", VOCABULARY * parallel.tp)
    _lower(text, "sliding_window", WINDOW)
    for each in (config, text):
        if (getattr(each, "pad_token_id", None) or 0) >= text.vocab_size:
            each.pad_token_id = None
    _reduce_vision(config, text.hidden_size)
    return config


def _lower(config: Any, name: str, most: int) -> None:
    value = getattr(config, name, None)
    if isinstance(value, int) and value > most:
        setattr(config, name, most)


def _layers_of_all_kinds(text: Any, names: list[str]) -> int:
    """Return how many of the first layers have one of each kind: of weights, and of what lists by layer hold."""
    count = text.num_hidden_layers
    weights: list[set[str]] = [set() for _ in range(count)]
    for name in names:
        found = _LAYER.search(name)
        if found and int(found[1]) < count:
            weights[int(found[1])].add(re.sub(r"\.\d+\.", ".", found[2]))
    by_layer = _lists_by_layer(text).values()
    kinds = [(frozenset(weights[n]), *(str(values[n]) for values in by_layer)) for n in range(count)]
    return max(kinds.index(kind) for kind in kinds) + 1


def _lists_by_layer(text: Any) -> dict[str, list[Any]]:
    values = {name: value for name, value in vars(text).items() if isinstance(value, list | tuple)}
    return {name: list(value) for name, value in values.items() if len(value) == text.num_hidden_layers}


def _keep_layers(text: Any, count: int) -> None:
    for name, values in _lists_by_layer(text).items():
        setattr(text, name, values[:count])
    text.num_hidden_layers = count


def _reduce_heads(text: Any, tp: int) -> None:
    """Keep two heads of keys and values for each process, two of queries for each of them, and the size of heads."""
    heads = text.num_attention_heads
    groups = getattr(text, "num_key_value_heads", None) or heads
    latent = getattr(text, "kv_lora_rank", None) is not None
    fewer = min(heads if latent else groups, 2 * tp)
    size = text.hidden_size // heads
    text.num_attention_heads = fewer * (1 if latent else min(2, heads // groups))
    if getattr(text, "num_key_value_heads", None):
        text.num_key_value_heads = fewer
    if latent or getattr(text, "head_dim", None):
        _lower(text, "hidden_size", HIDDEN)
    else:
        text.hidden_size = size * text.num_attention_heads


def _reduce_vision(config: Any, hidden: int) -> None:
    """Keep one layer of a vision encoder, which transformers itself computes, with features of the hidden size."""
    vision = getattr(config, "vision_config", None)
    if vision is None:
        return
    _lower(vision, "depth", 1)
    name = "out_hidden_size" if hasattr(vision, "out_hidden_size") else "hidden_size"
    setattr(vision, name, hidden)


@torch.no_grad()
def _fill(tensor: torch.Tensor, std: float | None) -> None:
    """Fill in values that make every weight matter: matrices keep the size of their inputs; norms and biases vary.

    Logits of routers and scores of attention are then of size 1, so that tokens differ in what they choose.
    """
    if not tensor.is_floating_point():
        return
    if tensor.ndim < 2:
        tensor.add_(torch.randn_like(tensor) * 0.1)
    else:
        tensor.normal_(std=tensor.shape[-1] ** -0.5 if std is None else std)
    tensor.copy_(tensor.bfloat16())

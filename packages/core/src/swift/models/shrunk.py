"""A small copy of an architecture: few layers, small widths, short limits, and every kind of layer kept.

Released models have windows, chunks and scales of thousands of tokens. A copy in which these are short, with random
weights, shows on some dozens of tokens whether a way of computing the architecture is right beyond them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

LIMIT = 16
"""Tokens that no window, chunk or scale of a copy exceeds."""
_LIMITS = frozenset({
    "attention_chunk_size", "attention_window_size", "block_size", "chunk_size", "floor_scale", "index_block_size",
    "index_topk", "index_topk_blocks", "indexer_budget", "keep_window_size", "local_attention", "mamba_chunk_size",
    "original_max_position_embeddings", "rel_extent", "sliding_window", "sliding_window_size", "window_size",
})  # fmt: skip
"""Settings that count tokens beyond which a layer computes in another way."""
_LAYERS = frozenset({
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_blocks", "encoder_layers", "decoder_layers",
    "num_encoder_layers", "num_decoder_layers",
})  # fmt: skip
_DENSE = frozenset({"first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"})
"""Numbers of first layers that have no experts."""
_SHARED = "num_kv_shared_layers"
"""The number of last layers that take keys and values of an earlier one."""
_PERIODS = frozenset({"attn_layer_period", "decoder_sparse_step", "expert_layer_period", "moe_layer_interval"})
_WIDTHS = re.compile(
    r"^(?!index_)(.*_)?(heads|heads_per_layer|n_head|head_kv|query_groups)$"
    r"|hidden_size$|intermediate_size|^feed_forward_size$|ffn_dim$|^d(im)?_(model|inner|ff)$|^dff$|^n_(embd|inner)$"
    r"|^emb(edding)?_(dim|size)$|^(in|out)put_embedding_size$|lora_rank$|^lru_width$|^mamba_d_ssm$"
    r"|^word_embed_proj_dim$|^(mamba_dt|time_step)_rank$"
)
"""Widths and numbers of heads. Indexers keep their heads: the scores of a few would often be equal, at zero."""
_MLP_WIDTHS = re.compile(r"intermediate_size|ffn_dim$|ffn_hidden_size$|^n_inner$|^dff$|^dim_ff$")
_EXPERTS = re.compile(r"^(moe_)?num_(local_)?experts$|^n_routed_experts$|^zero_expert_num$")
_CAPPED = {
    "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_topk": 2, "moe_k": 2, "top_k_experts": 2,
    "n_group": 2, "num_expert_group": 2, "topk_group": 1,
    "n_groups": 1, "mamba_n_groups": 1, "mamba_ngroups": 1,
    "indexer_compress_ratio": 4,
    "n_shared_experts": 1, "num_shared_experts": 1, "moe_num_shared_experts": 1,
}  # fmt: skip
_VOCABULARY = 256
_MOST_WEIGHTS = 50_000_000
"""Above which a copy would take memory and time that a user notices."""


def shrunk_config(config: Any, *, limit: int = LIMIT, heads: int = 2) -> Any:
    """Return a small configuration of the architecture of `config`, or of its language model.

    Layers of every kind, their order and all flags stay. Windows, chunks, scales and original lengths of rope are at
    most `limit` tokens. Heads keep their width; there are `heads` of them, or the next number by which the widths can
    be divided.
    """
    text = config.get_text_config()
    return _shrunk(text, _divisors(text, heads)[0], limit)


def limits_of(config: Any) -> dict[str, int]:
    """Return the windows, chunks, scales and original lengths that a configuration names."""
    found: dict[str, int] = {}
    for settings in _settings(config.get_text_config()):
        for name, value in settings.items():
            if name in _LIMITS and _is_count(value):
                found[name] = min(value, found.get(name, value))
    return found


def shrunk_model(model_class: type[nn.Module], config: Any, *, ways: int = 1) -> Any:
    """Return a small model of this class in fp32, whose random weights are wide enough for everything to tell.

    Its heads can be divided by `ways`. None where no copy can be built: of code that comes with a model,
    configurations may be anything.
    """
    text = config.get_text_config()
    for divisor in _divisors(text, max(2, ways)):
        try:
            small = _shrunk(text, divisor, LIMIT)
            _divisible(small, ways)
            with torch.device("meta"):
                weights = sum(parameter.numel() for parameter in _made(model_class, small).parameters())
            if weights > _MOST_WEIGHTS:
                continue
            with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
                torch.manual_seed(0)
                model: Any = _widened(_made(model_class, small)).eval()
                model(input_ids=torch.ones((1, 2 * LIMIT), dtype=torch.long), use_cache=False)
            return model
        except Exception:  # whatever a model's own code raises: the next size may do
            continue
    return None


def _divisible(small: Any, ways: int) -> None:
    """Give a copy as many heads of keys as of queries, where too few are left to be divided, and widths that can be."""
    for name, value in [*vars(small).items()]:
        if _is_count(value) and _MLP_WIDTHS.search(name):
            setattr(small, name, value + -value % ways)
    keys: Any = getattr(small, "num_key_value_heads", None)
    if _is_count(keys) and keys % ways:
        small.num_key_value_heads = small.num_attention_heads


def _made(model_class: type[nn.Module], config: Any) -> nn.Module:
    return model_class(config).float()


def _widened(model: nn.Module) -> nn.Module:
    """Draw matrices so that each layer adds as much as it is added to, and vectors so that nothing is equal."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def _settings(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of a configuration, of those in it, and of rope; these may be by the kind of layer."""
    settings = vars(config) if not isinstance(config, dict) else config
    yield settings
    for value in settings.values():
        if isinstance(value, dict) or hasattr(value, "to_dict"):
            yield from _settings(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _divisors(text: Any, heads: int) -> list[int]:
    """Return by what widths and heads may be divided, the best first."""
    settings = vars(text)
    names = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads", "mamba_num_heads")
    whole = next((settings[name] for name in names if _is_count(settings.get(name))), None)
    if whole is None:
        width = next((settings[name] for name in ("hidden_size", "d_model") if _is_count(settings.get(name))), 64)
        whole = max(1, width // 32)
    down = [n for n in range(whole, 0, -1) if whole % n == 0]
    return [n for n in down if whole // n >= heads] + [n for n in down if whole // n < heads][::-1]


def _shrunk(text: Any, divisor: int, limit: int) -> Any:
    kept = _kept_layers(text)
    layers = text.num_hidden_layers
    small = copy.deepcopy(text)
    _shrink(vars(small), divisor, limit)
    for name, value in vars(small).items():
        if isinstance(value, list | tuple) and _is_per_layer(value, layers):
            vars(small)[name] = [value[n] for n in kept]
        elif isinstance(value, list | tuple) and _is_layer_numbers(name, value, layers):
            vars(small)[name] = [kept.index(n) for n in value if n in kept]
        elif name in _LAYERS and _is_count(value):
            vars(small)[name] = len(kept)
        elif name == _SHARED and value:
            vars(small)[name] = sum(n >= layers - value for n in kept)
    own = vars(small).get("_heterogeneity_spec")
    if own is not None:
        overrides = own.per_layer_overrides
        for each in overrides.values():
            _shrink(each, divisor, limit)
        own.per_layer_overrides = {n: overrides[old] for n, old in enumerate(kept) if old in overrides}
    return small


def _shrink(settings: dict[str, Any], divisor: int, limit: int) -> None:
    """Make the numbers of settings small, in place, and of those in them."""
    for name, value in settings.items():
        if isinstance(value, dict):
            _shrink(value, divisor, limit)
        elif hasattr(value, "get_text_config"):
            _shrink(vars(value), divisor, limit)
        elif isinstance(value, list | tuple) and value and _WIDTHS.search(name):
            settings[name] = [_divided(each, divisor) if _is_count(each) else each for each in value]
        elif _is_count(value):
            settings[name] = _small(name, value, divisor, limit)


def _small(name: str, value: int, divisor: int, limit: int) -> int:
    if name in _LIMITS:
        return min(value, 2 if name == "index_topk_blocks" else limit)
    if "vocab_size" in name:
        return min(value, _VOCABULARY)
    if name == "pad_token_id":  # of which embeddings make a row
        return min(value, _VOCABULARY - 1)
    if _WIDTHS.search(name):
        return _divided(value, divisor)
    if _EXPERTS.search(name):
        return min(value, 4)
    if name in _DENSE:
        return 1
    return min(value, _CAPPED.get(name, value))


def _divided(value: int, divisor: int) -> int:
    if value < 8 * divisor:  # a number of heads
        return max(1, value // divisor)
    return value // divisor if value % divisor == 0 else -(-value // (8 * divisor)) * 8


def _is_per_layer(value: Sequence[Any], layers: int) -> bool:
    return len(value) == layers > 0 and not _rises(value)


def _is_layer_numbers(name: str, value: Sequence[Any], layers: int) -> bool:
    return name.endswith(("layers", "idxs", "ids", "indices")) and _rises(value) and value[-1] < layers


def _rises(value: Sequence[Any]) -> bool:
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in value)
    return bool(value) and whole and list(value) == sorted(set(value)) and len(value) > 1


def _kept_layers(text: Any) -> list[int]:
    """Return the first layer of each kind; of kinds that come by a period, the first layers up to the last new one."""
    layers: int = text.num_hidden_layers
    settings = vars(text)
    lists = {name: value for name, value in settings.items() if isinstance(value, list | tuple)}
    per_layer = [value for value in lists.values() if _is_per_layer(value, layers)]
    numbers = [value for name, value in lists.items() if _is_layer_numbers(name, value, layers)]
    periods = [settings[name] for name in _PERIODS if _is_count(settings.get(name)) and settings[name] > 1]
    dense = max((settings[name] for name in _DENSE if _is_count(settings.get(name))), default=0)
    shared = layers - (settings.get(_SHARED) or 0)
    own = vars(text).get("_heterogeneity_spec")
    overrides = {} if own is None else own.per_layer_overrides
    kept: list[int] = []
    seen = set()
    for n in range(layers):
        kind = (
            *(str(each[n]) for each in per_layer if len({str(other) for other in each}) <= 4),
            *(n in each for each in numbers),
            *(n % period for period in periods),
            n < dense,
            n >= shared,
            str(overrides.get(n)),
        )
        if kind not in seen:
            seen.add(kind)
            kept.append(n)
    if periods:
        return list(range(kept[-1] + 1))
    return kept if len(kept) > 1 else list(range(min(2, layers)))

"""config.json of a model's folder, checked before any library acts on it.

transformers builds what the file describes, whatever it says: a thousand million layers, heads that do not divide, an
attention kernel that is downloaded from the hub and run. What no model has is refused here, by key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from swift.errors import ModelError
from swift.untrusted import json_kind, read_json_object, shown

CONFIG = "config.json"

_LAYERS = 4096
_SIZE = 1 << 27
# What models of one kind or another call the same thing. The largest released models stay far below these limits.
_LIMITS = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), _LAYERS),
    **dict.fromkeys(("num_nextn_predict_layers", "num_hidden_groups", "inner_group_num"), _LAYERS),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts"), 1 << 16),
    **dict.fromkeys(("moe_num_experts", "num_experts_per_tok", "num_selected_experts"), 1 << 16),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "n_heads", "num_heads"), 1 << 16),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "vocab_size", "intermediate_size", "n_inner"), _SIZE),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "ffn_dim", "d_ff", "d_kv"), _SIZE),
    **dict.fromkeys(("head_dim", "embedding_size", "ffn_hidden_size", "type_vocab_size", "mlp_hidden_size"), _SIZE),
    **dict.fromkeys(("num_labels", "_num_labels"), 1 << 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"), 1 << 31),
}
_MAY_BE_ZERO = frozenset(
    {"num_experts", "num_local_experts", "n_routed_experts", "n_shared_experts", "moe_num_experts", "type_vocab_size",
     "num_experts_per_tok", "num_nextn_predict_layers", "shared_expert_intermediate_size", "intermediate_size"}
)  # fmt: skip
_POSITIVE = (
    "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon", "rope_theta", "rotary_emb_base",
    "factor", "attention_factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings",
)  # fmt: skip
_FRACTIONS = (
    "attention_dropout", "hidden_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop",
    "embd_pdrop", "attn_pdrop", "partial_rotary_factor", "rotary_pct", "dropout",
)  # fmt: skip
_SWITCHES = (
    "tie_word_embeddings", "attention_bias", "mlp_bias", "is_decoder", "is_encoder_decoder", "add_cross_attention",
)  # fmt: skip
_HEADS = (("num_attention_heads", "num_key_value_heads"), ("n_head", "num_key_value_heads"))
_WIDTHS = (("hidden_size", "num_attention_heads"), ("n_embd", "n_head"), ("d_model", "n_heads"))
_PARTS = ("text_config", "vision_config", "audio_config", "language_config", "llm_config", "quantization_config")
# Attention and expert kernels that are not part of transformers come from the hub, as code: "owner/name", or a path.
_KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")


def read_config(folder: Path) -> dict[str, Any]:
    """Return what config.json says; `ModelError` names the key that no model can have."""
    file = folder / CONFIG
    if not file.exists() and not file.is_symlink():
        raise ModelError(
            f"{shown(folder)} is not a model: {CONFIG} is missing.", hint="Pass the folder of a complete model."
        )
    try:
        config = read_json_object(file, ModelError)
    except ModelError as error:
        error.hint = "Copy or download it again."
        raise
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        found = f"model_type is {json_kind(model_type)}" if "model_type" in config else "it names no model_type"
        raise ModelError(f"{shown(file)} does not describe a model: {found}.", hint="Copy or download it again.")
    check_config(config, str(file))
    return config


class StoredConfig:
    """The content of config.json with the interface of transformers' configurations; an absent key has no attribute."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    def get_text_config(self) -> StoredConfig:
        """Return the part that describes the language model, of a model that has other parts."""
        text = self._content.get("text_config")
        return StoredConfig(text) if isinstance(text, dict) else self

    def __getattr__(self, name: str) -> Any:
        try:
            return self._content[name]
        except KeyError:
            raise AttributeError(f"{CONFIG} has no key {name!r}.") from None


def check_config(config: Mapping[str, Any], source: str) -> None:
    """Refuse values that no model has. `source` names the file in messages."""
    for path, section in _sections(config, ""):
        for problem in _problems(section):
            raise ModelError(f"{shown(source)}: {path}{problem}.", hint="Copy or download the file again.")


def _sections(config: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the configuration itself, and those of its parts: text_config, rope_parameters, ..."""
    yield path, config
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _sections(value, f"{path}{key}.")


def _problems(config: Mapping[str, Any]) -> Iterator[str]:
    latent = "qk_nope_head_dim" in config  # whose head_dim is that of rotary positions, if it has any
    for key, value in config.items():
        problem = _problem(key, value)
        if problem is not None and not (latent and key == "head_dim" and value == 0):
            yield f"{key} {problem}"
    for whole, part in _HEADS:
        heads, groups = config.get(whole), config.get(part)
        if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
            yield f"{whole} {heads} is not a multiple of {part} {groups}"
    for width, part in _WIDTHS:
        size, heads = config.get(width), config.get(part)
        own = config.get("head_dim") is not None or latent
        if isinstance(size, int) and isinstance(heads, int) and size % heads and not own:
            yield f"{width} {size} is not a multiple of {part} {heads}, and head_dim is missing"


def _problem(key: str, value: Any) -> str | None:
    """Return the problem with a value, or None."""
    if key in _LIMITS:
        return _size_problem(value, _LIMITS[key], lowest=0 if key in _MAY_BE_ZERO else 1)
    for covers, fits, rule in _RULES:
        if covers(key) and value is not None and not fits(value):
            return f"is {_shown(value)}; it must {rule}"
    if key in _KERNELS and any(map(_is_third_party, value.values() if isinstance(value, dict) else [value])):
        return f"is {_shown(value)}, which would download and run a kernel; use --model.attention instead"
    if key in _NAMES and value is not None and len(value) > _LAYERS:
        return f"has {len(value):,} names"
    if _is_number(value) and math.isnan(value):
        return "is not a number (NaN)"
    if type(value) is int and abs(value) >= 1 << 62:
        return f"is {_shown(value)}, which is out of range"
    return None


def _size_problem(value: Any, limit: int, *, lowest: int) -> str | None:
    # Some models give a size for every layer.
    for each in value if isinstance(value, list) else [value]:
        if each is None:
            continue
        if type(each) is not int:
            return f"is {_shown(value)}; it must be an integer"
        if not lowest <= each <= limit:
            return f"is {_shown(each)}; it must be from {lowest} to {limit:,}"
    if isinstance(value, list) and not 0 < len(value) <= _LAYERS:
        return f"has {len(value):,} values"
    return None


def _is_list_of_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_auto_map(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    classes = [each for named in value.values() for each in (named if isinstance(named, list) else [named])]
    return all(each is None or isinstance(each, str) for each in classes)


def _is_token(value: Any) -> bool:
    listed = value if isinstance(value, list) else [value]
    # Some models have -1 where there is no token.
    return all(each is None or (type(each) is int and -1 <= each <= _SIZE) for each in listed)


def _is_third_party(kernel: Any) -> bool:
    return isinstance(kernel, str) and any(mark in kernel for mark in "/@:")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return json_kind(value)
    text = "null" if value is None else repr(value) if isinstance(value, str | float) else str(value)
    return text if len(text) <= 60 else f"{text[:50]}…"


_NAMES = ("architectures", "layer_types")
_PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
_RULES: tuple[tuple[Callable[[str], bool], Callable[[Any], bool], str], ...] = (
    (_POSITIVE.__contains__, lambda value: _is_number(value) and 0 < value < math.inf, "be a number above 0"),
    (_FRACTIONS.__contains__, lambda value: _is_number(value) and 0 <= value <= 1, "be a number from 0 to 1"),
    (_SWITCHES.__contains__, lambda value: isinstance(value, bool), "be true or false"),
    (_NAMES.__contains__, _is_list_of_names, "be a list of names"),
    (_PARTS.__contains__, lambda value: isinstance(value, dict), "be an object"),
    ("problem_type".__eq__, _PROBLEM_TYPES.__contains__, f"be one of {', '.join(_PROBLEM_TYPES)}"),
    ("auto_map".__eq__, _is_auto_map, "map class names of transformers to class names"),
    (lambda key: key.endswith("_token_id"), _is_token, "be a token id or a list of token ids"),
)
"""(which keys, which values fit, what a value should do); null fits everywhere."""

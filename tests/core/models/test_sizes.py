"""Sizes of architectures without attention heads, and of those whose layers differ."""

from __future__ import annotations

import pytest
import transformers

from swift.errors import UnsupportedLayout
from swift.models.sizes import check_heads, config_of_layer, values_of
from swift.optim.placements import add_placements

GEMMA4 = {
    "vocab_size": 101, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 2,
    "attention_k_eq_v": True, "vocab_size_per_layer_input": 101, "hidden_size_per_layer_input": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip


def test_models_without_heads_are_refused_by_tp_alone() -> None:
    for config in (transformers.MambaConfig(), transformers.RwkvConfig()):
        check_heads(config, 1)
        with pytest.raises(UnsupportedLayout, match="has no attention heads"):
            check_heads(config, 2)


def test_heads_of_every_layer_must_be_divisible() -> None:
    config = transformers.Gemma4TextConfig(**GEMMA4)
    assert values_of(config, "head_dim") == [8, 16]
    assert config_of_layer(config, 1).head_dim == 16
    check_heads(config, 2)
    with pytest.raises(UnsupportedLayout, match="2 and 4 key-value heads"):
        check_heads(config, 4)


def test_placements_have_the_heads_of_their_layer() -> None:
    model = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**GEMMA4))
    found = {}
    for name, parameter in model.named_parameters():
        group = {"names": [name], "params": [parameter]}
        add_placements([group], model)
        found[name] = group["placements"][0].heads
    heads = {name: count for name, count in found.items() if count}
    assert heads == {
        "model.layers.0.self_attn.q_proj.weight": 4,
        "model.layers.0.self_attn.k_proj.weight": 4,
        "model.layers.1.self_attn.q_proj.weight": 4,
        "model.layers.1.self_attn.k_proj.weight": 2,
    }

"""Small copies of released architectures: every kind of layer, short limits, few weights."""

from __future__ import annotations

import pytest
import torch
import transformers

from swift.models.shrunk import LIMIT, limits_of, shrunk_config, shrunk_model

# The configurations that transformers has by default are about those of released models.
LIMITED = {
    "llama4": (
        transformers.Llama4TextConfig,
        transformers.Llama4ForCausalLM,
        {"attention_chunk_size": 8192, "floor_scale": 8192},
    ),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2Model, {"sliding_window": 4096}),
    "mamba2": (transformers.Mamba2Config, transformers.Mamba2Model, {"chunk_size": 256}),
    "ministral3": (
        transformers.Ministral3Config,
        transformers.Ministral3Model,
        {"original_max_position_embeddings": 16384},
    ),
    "recurrent_gemma": (
        transformers.RecurrentGemmaConfig,
        transformers.RecurrentGemmaModel,
        {"attention_window_size": 2048},
    ),
    "deepseek_v32": (transformers.DeepseekV32Config, transformers.DeepseekV32Model, {"index_topk": 2048}),
}


@pytest.mark.parametrize("name", LIMITED)
def test_limits_are_found_and_shortened(name: str) -> None:
    config_class, model_class, expected = LIMITED[name]
    config = config_class()
    assert limits_of(config) == expected
    model = shrunk_model(model_class, config)
    assert limits_of(model.config) == dict.fromkeys(expected, LIMIT)
    assert sum(parameter.numel() for parameter in model.parameters()) < 10_000_000
    assert limits_of(config) == expected


def test_every_kind_of_layer_is_kept() -> None:
    llama4 = shrunk_config(transformers.Llama4TextConfig(interleave_moe_layer_step=2))
    moe = [n in llama4.moe_layers for n in range(llama4.num_hidden_layers)]
    kinds = set(zip(llama4.layer_types, llama4.no_rope_layers, moe, strict=True))
    assert kinds == {("chunked_attention", 1, False), ("chunked_attention", 1, True), ("full_attention", 0, True)}
    deepseek = shrunk_config(transformers.DeepseekV3Config(first_k_dense_replace=3))
    assert (deepseek.num_hidden_layers, deepseek.first_k_dense_replace) == (2, 1)
    jamba = shrunk_config(transformers.JambaConfig(attn_layer_period=8, attn_layer_offset=4))
    assert jamba.num_hidden_layers == 8
    shared = shrunk_config(transformers.Gemma3nTextConfig())
    first = shared.num_hidden_layers - shared.num_kv_shared_layers
    assert set(shared.layer_types[first:]) <= set(shared.layer_types[:first])
    gemma4 = shrunk_config(transformers.Gemma4TextConfig(num_global_key_value_heads=2, attention_k_eq_v=True))
    assert [layer.head_dim for layer in gemma4.per_layer_config] == [256, 512]


def test_original_length_of_longrope_is_short() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 48, "long_factor": [4.0] * 48}
    config = transformers.Phi3Config(
        original_max_position_embeddings=4096, rope_parameters={**rope, "original_max_position_embeddings": 4096}
    )
    assert limits_of(config) == {"original_max_position_embeddings": 4096}
    assert shrunk_config(config).rope_parameters["original_max_position_embeddings"] == LIMIT


def test_a_copy_leaves_random_state_as_it_was() -> None:
    state = torch.get_rng_state()
    first, again = (shrunk_model(transformers.MistralModel, transformers.MistralConfig()) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.layers[0].mlp.up_proj.weight, again.layers[0].mlp.up_proj.weight)


def test_code_that_takes_no_other_size_has_no_copy() -> None:
    class OneSize(transformers.MistralModel):
        def __init__(self, config: transformers.MistralConfig) -> None:
            if config.hidden_size != 4096:
                raise ValueError("This is for one size only.")
            super().__init__(config)

    assert shrunk_model(OneSize, transformers.MistralConfig()) is None

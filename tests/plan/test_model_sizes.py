"""The planner's count of a model's values, from config.json, against the models that transformers builds of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from swift.errors import ModelError
from swift.model_names import NEAREST, RELEASED
from swift_plan.shape import config_of, shape_of

_BASE = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "head_dim": 16,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_LATENT = {
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "first_k_dense_replace": 1, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1,
}  # fmt: skip
EXACT: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("mistral", {}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("qwen3_moe", _EXPERTS),
    ("mixtral", {"num_local_experts": 4}),
    ("deepseek_v3", _LATENT),
    ("phi3", {"pad_token_id": 0}),
    ("granite", {}),
]
NEAR: list[tuple[str, dict[str, Any]]] = [
    ("gemma2", {}),
    ("gemma3_text", {}),
    ("olmo2", {}),
    ("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 96}),
    ("starcoder2", {}),
]
"""Whose norms or gates are others."""
ENCODERS = ["bert", "distilbert", "eurobert", "gte", "modernbert", "mpnet", "nomic_bert", "roberta", "xlm-roberta-xl"]


def _built(kind: str, changes: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    config = AutoConfig.for_model(kind, **{**_BASE, **changes})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters()), config.to_dict()


@pytest.mark.full
@pytest.mark.parametrize(("kind", "changes"), EXACT, ids=lambda value: value if isinstance(value, str) else "")
def test_every_value_is_counted(kind: str, changes: dict[str, Any]) -> None:
    built, config = _built(kind, changes)
    assert shape_of(config, kind).parameters == built


@pytest.mark.full
@pytest.mark.parametrize(("kind", "changes"), NEAR, ids=lambda value: value if isinstance(value, str) else "")
def test_other_models_are_counted_to_a_third_of_a_percent(kind: str, changes: dict[str, Any]) -> None:
    built, config = _built(kind, changes)
    assert shape_of(config, kind).parameters == pytest.approx(built, rel=1 / 300)


@pytest.mark.full
@pytest.mark.parametrize("kind", ENCODERS)
def test_encoders_of_vectors_are_counted(kind: str) -> None:
    """In the sizes that transformers has for each type, without pooler and head."""
    config = AutoConfig.for_model(kind)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    built = sum(each.numel() for name, each in model.named_parameters() if not name.startswith("pooler."))
    assert shape_of(config.to_dict(), kind, "embedding").parameters == pytest.approx(built, rel=1 / 300)


def test_encoders_without_a_count_are_named() -> None:
    with pytest.raises(ModelError, match="Cannot plan mine: albert encoders") as refused:
        shape_of({"model_type": "albert"}, "mine", "embedding")
    assert "bert, camembert" in str(refused.value.hint)


BILLIONS = {
    "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.55, "llama-3.1-405b": 405.85, "qwen2.5-7b": 7.62, "qwen3-0.6b": 0.596,
    "qwen3-30b-a3b": 30.53, "mixtral-8x7b": 46.7, "deepseek-v3": 671.0, "qwen2.5-1.5b": 1.54, "qwen2.5-3b": 3.09,
    "llama3-8b": 8.03, "llama-3-70b": 70.55, "mistral-7b": 7.25, "gpt2": 0.1244, "qwen2.5-7b-instruct": 7.62,
}  # fmt: skip
"""As their makers say."""


@pytest.mark.parametrize("name", BILLIONS)
def test_known_models_have_the_size_that_their_makers_say(name: str) -> None:
    assert shape_of(config_of(name), name).parameters / 1e9 == pytest.approx(BILLIONS[name], rel=3e-3)


def test_every_name_of_swift_sft_can_be_planned() -> None:
    """The planner and the training commands know the same names; those that were never released stand for others."""
    for name in (*RELEASED, *NEAREST):
        assert shape_of(config_of(name), name).parameters > 1e8, name


def test_a_token_passes_through_some_experts_only() -> None:
    shape = shape_of(config_of("deepseek-v3"), "deepseek-v3")
    assert shape.active_parameters / 1e9 == pytest.approx(37.5, rel=0.01)


def test_what_cannot_be_counted_is_named() -> None:
    with pytest.raises(ModelError, match="no num_hidden_layers"):
        shape_of({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 9}, "mine")

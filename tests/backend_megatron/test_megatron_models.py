"""Megatron on architectures, adapters and layouts beyond the kit's, against the torch backend on one process."""

from __future__ import annotations

import megatron_imported  # noqa: F401
import pytest
from against_torch import LORA, MOE, PACKED, RANKS, RERANKED, YES_NO, Both, Pair, assert_equal, run_pairs
from tiers import selected, tiered
from tiny_runs import verdicts

TIED = {"tie_word_embeddings": True}
ODD = {"vocab_size": 267}
"""Not divisible by 2, and larger than the tokenizer's."""
LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4, "head_dim": 8,
}  # fmt: skip
"""DeepSeek's: latent attention, one dense layer, a shared expert, sigmoid routing with a correction bias."""
LITE = {
    **{name: value for name, value in LATENT.items() if name not in ("head_dim", "first_k_dense_replace")},
    "mlp_layer_types": ["dense", "sparse"],
}
"""GLM-4.7-Flash's, which transformers 5 writes without the keys of DeepSeek's."""
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
TP2 = {"parallel.tp": 2}
SP2 = {**TP2, "parallel.sequence_parallel": True}
PP2 = {"parallel.pp": 2}
EP2 = {"parallel.ep": 2}
CP2 = {"parallel.cp": 2}
SELECTIVE = {"train.gradient_checkpointing": True, "backend.recompute": "selective"}
ATTENTION = {**LORA, "tuner.targets": ["q_proj", "v_proj"]}

PAIRS = {
    "llama 3": Pair("Llama", {"rope_parameters": LLAMA3}, TP2),
    "qwen2, with biases, lora, packed": Pair("Qwen2", {}, {**SP2, **LORA, **PACKED}),
    "mistral, context parallel, packed": Pair("Mistral", {"sliding_window": 16}, {**CP2, **PACKED}),
    "tied, stages, lora": Pair("Llama", TIED, {**PP2, **LORA}),
    "odd vocabulary, tied, smoothed": Pair("Qwen3", {**ODD, **TIED}, {**TP2, "objective.label_smoothing": 0.1}),
    "qwen3-moe, context parallel": Pair("Qwen3Moe", MOE, {**CP2, **EP2}),
    "deepseek v3, tensor parallel": Pair("DeepseekV3", LATENT, {**SP2, "parallel.ep": 2}),
    "deepseek v3, lora": Pair("DeepseekV3", LATENT, {**SP2, **LORA}),
    "glm4, lora": Pair("Glm4", {"pad_token_id": 0}, {**SP2, **LORA}),
    "glm4 moe lite": Pair("Glm4MoeLite", LITE, {**SP2, "parallel.ep": 2}),
    "hy v3, stages": Pair("HYV3", {**MOE, "mlp_layer_types": ["dense", "sparse"]}, PP2),
    "minimax m2": Pair("MiniMaxM2", {**MOE, "intermediate_size": 32}, SP2),
    "adapters on some of what is fused": Pair(settings={**TP2, **ATTENTION}),
    "ranks of their own": Pair(settings={**TP2, **LORA, **RANKS}),
    "lora plus": Pair(settings={**TP2, **LORA, "tuner.lora_plus_ratio": 4.0}),
    "mlp recomputed, a short first stage": Pair(
        "Qwen3",
        {"num_hidden_layers": 3},
        {**PP2, **SELECTIVE, "backend.recompute_modules": ["core_attn", "mlp"], "backend.first_stage": 1},
    ),
    "experts recomputed": Pair("Qwen3Moe", MOE, {**EP2, **SELECTIVE, "backend.recompute_modules": ["moe"]}),
    "some blocks recomputed, a short last stage": Pair(
        "Qwen3",
        {"num_hidden_layers": 3},
        {**PP2, "train.gradient_checkpointing": True, "backend.recompute_method": "block", "backend.last_stage": 1},
    ),
    "kto": Pair(settings={**PP2, "objective.name": "kto", **LORA}, rows=verdicts(13)),
    "generative reranker, tensors in stages": Pair(settings={**SP2, **PP2, **YES_NO}, rows=RERANKED, processes=4),
    "everything at once": Pair(
        "Qwen3Moe",
        {**MOE, **TIED, "num_hidden_layers": 4},
        {**SP2, **PP2, "parallel.vpp": 2, "parallel.ep": 2, "backend.overlap": True},
        processes=4,
    ),
    "experts of four, tensors cut in two": Pair(
        "Qwen3Moe", MOE, {**SP2, "parallel.ep": 2, "parallel.etp": 2}, processes=4
    ),
    "replicas of sharded optimizers": Pair(settings={"parallel.dp_replicate": 2, "parallel.dp_shard": 2}, processes=4),
}
QUICK = ("tied, stages, lora", "everything at once")
RARE = ("lora plus",)


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Both]:
    chosen = {name: PAIRS[name] for name in selected(request, "name")}
    return run_pairs(tmp_path_factory.mktemp("models"), chosen, "megatron")


@pytest.mark.parametrize("name", tiered(PAIRS, QUICK, RARE))
def test_processes_of_megatron_give_the_numbers_of_one_of_torch(both: dict[str, Both], name: str) -> None:
    assert_equal(both[name])

"""FSDP on architectures, adapters and quantised weights beyond the kit's, against the torch backend on one process."""

from __future__ import annotations

import pytest
from against_torch import (
    BIASES,
    CENTRED,
    CLASSES,
    COMPILED,
    COMPILED_QLORA,
    GPT2,
    LABELLED,
    LISTWISE,
    LORA,
    MOE,
    PACKED,
    RERANKED,
    WIDE,
    YES_NO,
    Both,
    Pair,
    assert_equal,
    run_pairs,
)
from tiers import selected, tiered
from tiny_runs import pairs, verdicts

NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
"""Masks are drawn for what a process holds, so that they are other ones where samples are cut."""
TIED = {"tie_word_embeddings": True}
WINDOW = {"sliding_window": 16}
WITHOUT_HEADS = {"num_attention_heads": None, "num_key_value_heads": None, "head_dim": None, "state_size": 8}
"""Of a Mamba."""
HEADS_BY_LAYER = {
    "layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 32, "attention_k_eq_v": True,
    "num_global_key_value_heads": 1, "vocab_size_per_layer_input": 264, "hidden_size_per_layer_input": 8,
    "sliding_window": 16,
}  # fmt: skip

PAIRS = {
    "llama": Pair("Llama"),
    "mistral": Pair("Mistral", {"sliding_window": 32}),
    "gemma": Pair("Gemma", TIED),
    "qwen2, with biases": Pair("Qwen2"),
    "gpt-2": Pair("GPT2", GPT2),
    "gpt-2, context parallel": Pair("GPT2", {**GPT2, **NO_DROPOUT}, {"parallel.cp": 2}),
    "mamba": Pair("Mamba", WITHOUT_HEADS),
    "gemma 4": Pair("Gemma4Text", HEADS_BY_LAYER),
    "qwen3-moe": Pair("Qwen3Moe", MOE),
    "qwen3-moe, lora": Pair("Qwen3Moe", MOE, LORA),
    "llama, tensor parallel": Pair("Llama", {}, {"parallel.tp": 2}),
    "gemma, tensor parallel": Pair("Gemma", TIED, {"parallel.tp": 2}),
    "mistral, ulysses": Pair("Mistral", WINDOW, {"parallel.ulysses": 2}),
    "mistral, context parallel": Pair("Mistral", WINDOW, {"parallel.cp": 2}),
    "mistral, context parallel, packed": Pair("Mistral", WINDOW, {"parallel.cp": 2, **PACKED}),
    "bnb-nf4": Pair("Qwen3", WIDE, {**LORA, "tuner.quantize": "bnb-nf4"}),
    "torchao-nf4": Pair("Qwen3", WIDE, {**LORA, "tuner.quantize": "torchao-nf4"}),
    "frozen by pattern": Pair(settings={"tuner.freeze": ["*embed_tokens*", "*.layers.0.*"]}),
    "biases, ranks of their own": Pair("Qwen2", settings={**LORA, **BIASES}),
    "modules to save": Pair(settings={**LORA, "tuner.modules_to_save": ["lm_head"]}),
    "kto": Pair(settings={"objective.name": "kto", **LORA}, rows=verdicts(13)),
    "orpo, ulysses": Pair(settings={"objective.name": "orpo", "parallel.ulysses": 2}, rows=pairs(9)),
    "rm, lora": Pair(settings={**CENTRED, **LORA}, rows=pairs(9)),
    "classes, tensor parallel": Pair(settings={**CLASSES, "parallel.tp": 2}, rows=LABELLED),
    "reranker, lora": Pair(settings={**LISTWISE, **LORA}, rows=RERANKED),
    "generative reranker, tensor parallel": Pair(settings={**YES_NO, "parallel.tp": 2}, rows=RERANKED),
    "gathered weights are kept": Pair(settings={"backend.reshard_after_forward": False, "backend.prefetch": 2}),
    "compiled": COMPILED,
    "compiled, bnb-nf4": COMPILED_QLORA,
    "every second block recomputed": Pair(
        "Qwen3", {"num_hidden_layers": 4}, {"train.gradient_checkpointing": True, "backend.checkpoint_every": 2}
    ),
    # A Qwen3 with four heads, and two of keys and values.
    "ulysses of four": Pair(settings={"parallel.ulysses": 4}, processes=4),
    "ulysses of four, packed": Pair(settings={"parallel.ulysses": 4, **PACKED}, processes=4),
    "ulysses x fsdp": Pair(settings={"parallel.ulysses": 2, "parallel.dp_shard": 2}, processes=4),
    "ulysses x hsdp": Pair(settings={"parallel.ulysses": 2, "parallel.dp_replicate": 2}, processes=4),
}
QUICK = ("gpt-2, context parallel", "ulysses of four, packed", "bnb-nf4")
RARE = (
    *("llama", "gemma", "mistral", "qwen2, with biases", "gpt-2", "qwen3-moe", "mistral, ulysses"),
    *("mistral, context parallel", "modules to save", "reranker, lora", "ulysses of four", "ulysses x fsdp"),
    "compiled, bnb-nf4",
)
"""Of which others combine what they try."""


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Both]:
    chosen = {name: PAIRS[name] for name in selected(request, "name")}
    return run_pairs(tmp_path_factory.mktemp("models"), chosen, "fsdp")


@pytest.mark.parametrize("name", tiered(PAIRS, QUICK, RARE))
def test_processes_of_fsdp_give_the_numbers_of_one_of_torch(both: dict[str, Both], name: str) -> None:
    assert_equal(both[name])

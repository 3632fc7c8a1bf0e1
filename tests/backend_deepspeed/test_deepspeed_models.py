"""DeepSpeed on architectures and adapters beyond the kit's, against the torch backend on one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

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

TWO, THREE = {"backend.config": "zero2"}, {"backend.config": "zero3"}
TIED = {"tie_word_embeddings": True}
MAMBA2 = {
    "num_attention_heads": None, "num_key_value_heads": None, "num_heads": 8, "head_dim": 16, "state_size": 8,
    "n_groups": 1, "chunk_size": 32,
}  # fmt: skip

PAIRS = {
    "llama, zero 3": Pair("Llama", {}, THREE),
    "gemma, zero 3": Pair("Gemma", TIED, THREE),
    "gemma, zero 2": Pair("Gemma", TIED, TWO),
    "gpt-2, zero 3": Pair("GPT2", GPT2, THREE),
    "qwen2, with biases, zero 1": Pair("Qwen2", {}, {"backend.config": "zero1"}),
    "mamba 2, zero 3": Pair("Mamba2", MAMBA2, THREE),
    "qwen3-moe, zero 3": Pair("Qwen3Moe", MOE, THREE),
    "qwen3-moe, lora, zero 2": Pair("Qwen3Moe", MOE, {**LORA, **TWO}),
    "mistral, ulysses, zero 2": Pair("Mistral", {"sliding_window": 16}, {"parallel.ulysses": 2, **TWO}),
    "llama, tensor parallel": Pair("Llama", {}, {"parallel.tp": 2, **TWO}),
    "gemma, tensor parallel, zero 0": Pair("Gemma", TIED, {"parallel.tp": 2, "backend.config": "zero0"}),
    "qwen2, biases, tensor parallel, zero 1": Pair("Qwen2", {}, {"parallel.tp": 2, "backend.config": "zero1"}),
    "bnb-nf4, zero 2": Pair("Qwen3", WIDE, {**LORA, "tuner.quantize": "bnb-nf4", **TWO}),
    "frozen by pattern, zero 3": Pair(settings={"tuner.freeze": ["*embed_tokens*", "*.layers.0.*"], **THREE}),
    "biases, ranks of their own, zero 3": Pair("Qwen2", settings={**LORA, **BIASES, **THREE}),
    "modules to save, zero 3": Pair(settings={**LORA, "tuner.modules_to_save": ["lm_head"], **THREE}),
    "lora+, zero 2": Pair(settings={**LORA, "tuner.lora_plus_ratio": 4.0, **TWO}),
    "kto, zero 3": Pair(settings={"objective.name": "kto", **LORA, **THREE}, rows=verdicts(13)),
    "orpo, zero 2": Pair(settings={"objective.name": "orpo", **TWO}, rows=pairs(9)),
    "rm, zero 3": Pair(settings={**CENTRED, **THREE}, rows=pairs(9)),
    "classes, lora, packed, zero 3": Pair(settings={**CLASSES, **LORA, **PACKED, **THREE}, rows=LABELLED),
    "reranker, zero 3": Pair(settings={**LISTWISE, **THREE}, rows=RERANKED),
    "generative reranker, lora, zero 3": Pair(settings={**YES_NO, **LORA, **THREE}, rows=RERANKED),
    "small buckets, zero 3": Pair(
        settings={
            "backend.config": {
                "zero_optimization": {
                    "stage": 3,
                    "reduce_bucket_size": 3000,
                    "stage3_prefetch_bucket_size": 2000,
                    "stage3_param_persistence_threshold": 0,
                    "overlap_comm": True,
                    "contiguous_gradients": True,
                }
            }
        }
    ),
    "compiled, zero 2": replace(COMPILED, settings={**COMPILED.settings, **TWO}),
    "compiled, bnb-nf4, zero 2": replace(COMPILED_QLORA, settings={**COMPILED_QLORA.settings, **TWO}),
    "ulysses of four, packed, zero 3": Pair(settings={"parallel.ulysses": 4, **PACKED, **THREE}, processes=4),
}
QUICK = ("qwen3-moe, lora, zero 2", "qwen2, biases, tensor parallel, zero 1")
RARE = (
    *("llama, zero 3", "gemma, zero 2", "gpt-2, zero 3", "qwen2, with biases, zero 1", "llama, tensor parallel"),
    *("modules to save, zero 3", "lora+, zero 2", "orpo, zero 2", "rm, zero 3", "reranker, zero 3"),
    *("compiled, zero 2", "compiled, bnb-nf4, zero 2"),
)
"""Of which others combine what they try."""


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Both]]:
    before = os.environ.get("DS_ACCELERATOR")
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed  # noqa: F401  # once, for all processes

    chosen = {name: PAIRS[name] for name in selected(request, "name")}
    yield run_pairs(tmp_path_factory.mktemp("models"), chosen, "deepspeed")
    if before is None:
        del os.environ["DS_ACCELERATOR"]


@pytest.mark.parametrize("name", tiered(PAIRS, QUICK, RARE))
def test_processes_of_deepspeed_give_the_numbers_of_one_of_torch(both: dict[str, Both], name: str) -> None:
    assert_equal(both[name])

"""DeepSpeed on architectures and adapters beyond the kit's, against the torch backend on one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from against_torch import (
    BERT,
    BIASES,
    COMPILED,
    COMPILED_QLORA,
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
)  # fmt: skip
from tiers import selected, tiered
from tiny_runs import verdicts

TWO, THREE = {"backend.config": "zero2"}, {"backend.config": "zero3"}
TIED = {"tie_word_embeddings": True}
SMALL_BUCKETS = {
    "stage": 3, "reduce_bucket_size": 3000, "stage3_prefetch_bucket_size": 2000,
    "stage3_param_persistence_threshold": 0, "overlap_comm": True, "contiguous_gradients": True,
}  # fmt: skip

PAIRS = {
    "qwen3-moe, lora, zero 2": Pair("Qwen3Moe", MOE, {**LORA, **TWO}),
    "mistral, ulysses, zero 2": Pair("Mistral", {"sliding_window": 16}, {"parallel.ulysses": 2, **TWO}),
    "gemma, tensor parallel, zero 0": Pair("Gemma", TIED, {"parallel.tp": 2, "backend.config": "zero0"}),
    "qwen2, biases, tensor parallel, zero 1": Pair("Qwen2", {}, {"parallel.tp": 2, "backend.config": "zero1"}),
    "bnb-nf4, zero 2": Pair("Qwen3", WIDE, {**LORA, "tuner.quantize": "bnb-nf4", **TWO}),
    "bert, lora, zero 3": replace(BERT, settings={**BERT.settings, **THREE}),
    "bert, bnb-nf4, zero 3": replace(BERT, settings={**BERT.settings, "tuner.quantize": "bnb-nf4", **THREE}),
    "bert, bnb-nf4, embedding, zero 2": replace(
        BERT, settings={**LORA, "tuner.quantize": "bnb-nf4", "objective.name": "embedding", **TWO}
    ),
    "biases, ranks of their own, zero 3": Pair("Qwen2", settings={**LORA, **BIASES, **THREE}),
    "kto, zero 3": Pair(settings={"objective.name": "kto", **LORA, **THREE}, rows=verdicts(13)),
    "generative reranker, lora, zero 3": Pair(settings={**YES_NO, **LORA, **THREE}, rows=RERANKED),
    "small buckets, zero 3": Pair(settings={"backend.config": {"zero_optimization": SMALL_BUCKETS}}),
    "compiled, zero 2": replace(COMPILED, settings={**COMPILED.settings, **TWO}),
    "compiled, bnb-nf4, zero 2": replace(COMPILED_QLORA, settings={**COMPILED_QLORA.settings, **TWO}),
    "ulysses of four, packed, zero 3": Pair(settings={"parallel.ulysses": 4, **PACKED, **THREE}, processes=4),
}
QUICK = ("qwen3-moe, lora, zero 2", "qwen2, biases, tensor parallel, zero 1")
RARE = ("compiled, zero 2", "compiled, bnb-nf4, zero 2")


@pytest.fixture(scope="module")
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, deepspeed_on_cpu: None
) -> dict[str, Both]:
    chosen = {name: PAIRS[name] for name in selected(request, "name")}
    return run_pairs(tmp_path_factory.mktemp("models"), chosen, "deepspeed")


@pytest.mark.parametrize("name", tiered(PAIRS, QUICK, RARE))
def test_processes_of_deepspeed_give_the_numbers_of_one_of_torch(both: dict[str, Both], name: str) -> None:
    assert_equal(both[name])

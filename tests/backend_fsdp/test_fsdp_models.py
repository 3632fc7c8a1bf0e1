"""FSDP on architectures, adapters and quantised weights beyond the kit's, against the torch backend on one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from against_torch import (
    BERT,
    BIASES,
    COMPILED,
    COMPILED_QLORA,
    GPT2,
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
from tiny_runs import pairs, verdicts

NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
"""Masks are drawn for what a process holds, so that they are other ones where samples are cut."""
WINDOW = {"sliding_window": 16}

PAIRS = {
    "gpt-2, context parallel": Pair("GPT2", {**GPT2, **NO_DROPOUT}, {"parallel.cp": 2}),
    "qwen3-moe, lora": Pair("Qwen3Moe", MOE, LORA),
    "mistral, context parallel, packed": Pair("Mistral", WINDOW, {"parallel.cp": 2, **PACKED}),
    "bnb-nf4": Pair("Qwen3", WIDE, {**LORA, "tuner.quantize": "bnb-nf4"}),
    "torchao-nf4": Pair("Qwen3", WIDE, {**LORA, "tuner.quantize": "torchao-nf4"}),
    "qwen3-moe, bnb-nf4": Pair("Qwen3Moe", {**WIDE, **MOE}, {**LORA, "tuner.quantize": "bnb-nf4"}),
    "qwen3-moe, torchao-nf4, recomputed": Pair(
        "Qwen3Moe",
        {**WIDE, **MOE},
        {**LORA, "tuner.quantize": "torchao-nf4", "train.gradient_checkpointing": True},
    ),
    "bert, lora": BERT,
    "bert, bnb-nf4": replace(BERT, settings={**BERT.settings, "tuner.quantize": "bnb-nf4"}),
    "bert, torchao-nf4, embedding": replace(
        BERT, settings={**LORA, "tuner.quantize": "torchao-nf4", "objective.name": "embedding"}
    ),
    "biases, ranks of their own": Pair("Qwen2", settings={**LORA, **BIASES}),
    "modules to save": Pair(settings={**LORA, "tuner.modules_to_save": ["lm_head"]}),
    "kto": Pair(settings={"objective.name": "kto", **LORA}, rows=verdicts(13)),
    "orpo, ulysses": Pair(settings={"objective.name": "orpo", "parallel.ulysses": 2}, rows=pairs(9)),
    "generative reranker, tensor parallel": Pair(settings={**YES_NO, "parallel.tp": 2}, rows=RERANKED),
    "gathered weights are kept": Pair(settings={"backend.reshard_after_forward": False, "backend.prefetch": 2}),
    "compiled": COMPILED,
    "compiled, bnb-nf4": COMPILED_QLORA,
    "every second block recomputed": Pair(
        "Qwen3", {"num_hidden_layers": 4}, {"train.gradient_checkpointing": True, "backend.checkpoint_every": 2}
    ),
    # A Qwen3 with four heads, and two of keys and values.
    "ulysses of four, packed": Pair(settings={"parallel.ulysses": 4, **PACKED}, processes=4),
    "ulysses x hsdp": Pair(settings={"parallel.ulysses": 2, "parallel.dp_replicate": 2}, processes=4),
}
QUICK = ("gpt-2, context parallel", "ulysses of four, packed", "bnb-nf4")
RARE = ("modules to save", "compiled, bnb-nf4")


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Both]:
    chosen = {name: PAIRS[name] for name in selected(request, "name")}
    return run_pairs(tmp_path_factory.mktemp("models"), chosen, "fsdp")


@pytest.mark.parametrize("name", tiered(PAIRS, QUICK, RARE))
def test_processes_of_fsdp_give_the_numbers_of_one_of_torch(both: dict[str, Both], name: str) -> None:
    assert_equal(both[name])

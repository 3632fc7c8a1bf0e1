"""FSDP on architectures, adapters and quantised weights beyond the kit's, against the torch backend on one process."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "core"))

from processes import on_processes, succeeded
from tiny_runs import Trained, conversations, pairs, run_training, verdicts

from swift.testing.subjects import write_model

ROWS = conversations(13)
COMMON = {"train.global_batch": 8, "train.micro_batch": 4, "train.max_steps": 4, "optim.eps": 1e-6}
LORA = {"tuner.kind": "lora", "tuner.dropout": 0.0, "optim.lr": 5e-3}
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "initializer_range": 0.02}
"""torchao cuts a matrix into blocks of 16384 weights."""
GPT2 = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "tie_word_embeddings": True}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
"""Masks are drawn for what a process holds, so that they are other ones where samples are cut."""
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}

CASES: dict[str, tuple[str, dict[str, Any], list[Any], dict[str, Any]]] = {
    "llama": ("Llama", {}, ROWS, {}),
    "mistral": ("Mistral", {"sliding_window": 32}, ROWS, {}),
    "gemma": ("Gemma", {"tie_word_embeddings": True}, ROWS, {}),
    "qwen2, with biases": ("Qwen2", {}, ROWS, {}),
    "gpt-2": ("GPT2", GPT2, ROWS, {}),
    "gpt-2, context parallel": ("GPT2", {**GPT2, **NO_DROPOUT}, ROWS, {"parallel.cp": 2}),
    "qwen3-moe": ("Qwen3Moe", MOE, ROWS, {}),
    "qwen3-moe, lora": ("Qwen3Moe", MOE, ROWS, LORA),
    "llama, tensor parallel": ("Llama", {}, ROWS, {"parallel.tp": 2}),
    "gemma, tensor parallel": ("Gemma", {"tie_word_embeddings": True}, ROWS, {"parallel.tp": 2}),
    "mistral, ulysses": ("Mistral", {"sliding_window": 16}, ROWS, {"parallel.ulysses": 2}),
    "mistral, context parallel": ("Mistral", {"sliding_window": 16}, ROWS, {"parallel.cp": 2}),
    "mistral, context parallel, packed": (
        "Mistral",
        {"sliding_window": 16},
        ROWS,
        {"parallel.cp": 2, "data.packing": True, "data.max_length": 160, "train.global_batch": 4},
    ),
    "bnb-nf4": ("Qwen3", WIDE, ROWS, {**LORA, "tuner.quantize": "bnb-nf4"}),
    "torchao-nf4": ("Qwen3", WIDE, ROWS, {**LORA, "tuner.quantize": "torchao-nf4"}),
    "frozen by pattern": ("Qwen3", {}, ROWS, {"tuner.freeze": ["*embed_tokens*", "*.layers.0.*"]}),
    "modules to save": ("Qwen3", {}, ROWS, {**LORA, "tuner.modules_to_save": ["lm_head"]}),
    "kto": ("Qwen3", {}, verdicts(13), {"objective.name": "kto", **LORA}),
    "orpo, ulysses": ("Qwen3", {}, pairs(9), {"objective.name": "orpo", "parallel.ulysses": 2}),
    "gathered weights are kept": ("Qwen3", {}, ROWS, {"backend.reshard_after_forward": False, "backend.prefetch": 2}),
    "compiled": ("Qwen3", {"num_hidden_layers": 1}, ROWS, {"train.compile": True}),
    "every second block recomputed": (
        "Qwen3",
        {"num_hidden_layers": 4},
        ROWS,
        {"train.gradient_checkpointing": True, "backend.checkpoint_every": 2},
    ),
}

OF_FOUR: dict[str, dict[str, Any]] = {
    "ulysses of four, two key-value heads": {"parallel.ulysses": 4},
    "ulysses of four, packed": {
        "parallel.ulysses": 4, "data.packing": True, "data.max_length": 160, "train.global_batch": 4,
    },
    "ulysses x fsdp": {"parallel.ulysses": 2, "parallel.dp_shard": 2},
    "ulysses x hsdp": {"parallel.ulysses": 2, "parallel.dp_replicate": 2},
}  # fmt: skip
"""Of a Qwen3 with four heads, and two of keys and values."""
CASES |= {name: ("Qwen3", {}, ROWS, changes) for name, changes in OF_FOUR.items()}


def slug(name: str) -> str:
    return re.sub(r"\W+", "-", name)


def settings_of(name: str, backend: str) -> dict[str, Any]:
    changes = CASES[name][3]
    if backend == "torch":
        changes = {key: value for key, value in changes.items() if not key.startswith(("parallel.", "backend."))}
    return {**COMMON, **changes, "backend.name": backend, "logging.run_name": f"{slug(name)}-{backend}"}


def job(name: str, model: Path, output: Path, backend: str) -> Callable[[], Trained]:
    return lambda: run_training(
        model, output, CASES[name][2], settings_of(name, backend), validation=CASES[name][2][:3]
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Trained, Any]]:
    """Each case on torch, and the answers of two or four processes on FSDP."""
    folder = tmp_path_factory.mktemp("models")
    models: dict[str, Path] = {}
    for name, (architecture, changes, _, _) in CASES.items():
        shape = {"num_hidden_layers": 2, **changes}
        models[name] = write_model(folder / slug(name), architecture=architecture, **shape)
    out = folder / "out"
    alone = {name: job(name, models[name], out, "torch")() for name in CASES}
    answers: dict[str, Any] = {}
    for size, names in ((2, [name for name in CASES if name not in OF_FOUR]), (4, list(OF_FOUR))):
        jobs = (job(name, models[name], out, "fsdp") for name in names)
        answers |= zip(names, on_processes(size, *jobs), strict=True)
    return {name: (alone[name], answers[name]) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_processes_of_fsdp_give_the_numbers_of_one_of_torch(both: dict[str, tuple[Trained, Any]], name: str) -> None:
    torch_run, answers = both[name]
    fsdp_run = succeeded(answers)[0]
    assert torch_run.losses[-1] < torch_run.losses[0]
    assert fsdp_run.losses == pytest.approx(torch_run.losses, rel=1e-5)
    assert fsdp_run.grad_norms == pytest.approx(torch_run.grad_norms, rel=1e-4)
    assert fsdp_run.lines[4]["eval_loss"] == pytest.approx(torch_run.lines[4]["eval_loss"], rel=1e-5)

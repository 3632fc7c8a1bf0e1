"""Runs of a backend on several processes beside runs of the torch backend on one: what the kit's models don't have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from encoder_cells import encoder_tokenizer
from processes import on_processes, succeeded
from tiny_runs import Trained, conversations, run_training

from swift_testing.subjects import write_model

ROWS = conversations(13)
COMMON = {"train.global_batch": 8, "train.micro_batch": 4, "train.max_steps": 4, "optim.eps": 1e-6}
LORA = {"tuner.kind": "lora", "tuner.dropout": 0.0, "optim.lr": 5e-3}
RANKS = {"tuner.init": "orthogonal", "tuner.rank_pattern": {"q_proj": 4}, "tuner.alpha_pattern": {"v_proj": 8.0}}
BIASES = {**RANKS, "tuner.bias": "all"}
PACKED = {"data.packing": True, "data.max_length": 160, "train.global_batch": 4}
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "initializer_range": 0.02}
"""Wide enough for matrices to be quantised in blocks."""
GPT2 = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "tie_word_embeddings": True}
ALIKE = [{"query": f"Write {number}", "response": f"{number} {number}"} for number in range(100, 116)]
"""Of one length, as each length is compiled for anew."""
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
RERANKED = [
    {"query": str(n), "positive": [f"{n} is it"], "negative": [f"{n + k} is {k} off" for k in range(1, 2 + n % 4)]}
    for n in range(100, 113)
]
"""Groups of two to five documents."""
YES_NO = {
    "objective.name": "generative_reranker", "objective.positive_token": "y", "objective.negative_token": "n",
    "objective.instruction": "", "data.system": "Judge.",
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """One model and data set, trained on both."""

    architecture: str = "Qwen3"
    shape: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Any] = tuple(ROWS)
    processes: int = 2
    held_out: int = 3
    """How many of the rows are evaluated on."""

    def run(self, name: str, model: Path, output: Path, backend: str) -> Trained:
        """Train; the torch backend gets no plan, no options of another, and compiles nothing: it is the reference."""
        beyond = ("parallel.", "backend.", "train.compile")
        mine = {key: each for key, each in self.settings.items() if not key.startswith(beyond)}
        chosen = {**COMMON, **(mine if backend == "torch" else self.settings)}
        chosen |= {"backend.name": backend, "logging.run_name": f"{slug(name)}-{backend}"}
        if chosen.get("train.compile"):
            compile_plain_loops()
        return run_training(model, output, list(self.rows), chosen, validation=list(self.rows[: self.held_out]))


BERT = Pair(
    "Bert",
    {**WIDE, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    {**LORA, "objective.name": "reranker", "optim.lr": 2e-4},
    RERANKED,
)
"""An encoder whose head is new, and trained beside adapters."""
COMPILED = Pair("Qwen3", {"num_hidden_layers": 1}, {"train.compile": True}, ALIKE, held_out=8)
COMPILED_QLORA = Pair(
    "Qwen3", {**WIDE, "num_hidden_layers": 1}, {**LORA, "tuner.quantize": "bnb-nf4", "train.compile": True}, ALIKE,
    held_out=8,
)  # fmt: skip


def compile_plain_loops() -> None:
    """Leave vector instructions out, which take as long to compile as all else: the graphs are what is compared."""
    from torch._inductor import config

    config.cpp.simdlen = 0


def import_compiler() -> None:
    """Import once what compiling takes, for all processes that are forked from this one."""
    import torch._functorch.aot_autograd
    import torch._inductor.codegen.cpp
    import torch._inductor.codegen.cpp_wrapper_cpu
    import torch._inductor.compile_fx  # noqa: F401


def slug(name: str) -> str:
    return re.sub(r"\W+", "-", name)


@dataclass(frozen=True)
class Both:
    """What came of one pair: the answers of torch's one process, and of the backend's."""

    torch: list[Any]
    backend: list[Any]


def run_pairs(folder: Path, pairs: Mapping[str, Pair], backend: str) -> dict[str, Both]:
    """Each pair on torch and on the backend."""
    if any(pair.settings.get("train.compile") for pair in pairs.values()):
        import_compiler()
    models = {
        name: write_model(folder / slug(name), architecture=pair.architecture, **pair.shape)
        for name, pair in pairs.items()
    }
    for name, pair in pairs.items():
        if pair.architecture == BERT.architecture:
            encoder_tokenizer().save_pretrained(models[name])
    out = folder / "out"
    # In processes of their own too: what torch starts in this one would be missing in those that are forked from it.
    on_torch = [partial(pair.run, name, models[name], out, "torch") for name, pair in pairs.items()]
    alone = dict(zip(pairs, on_processes(1, *on_torch), strict=True))
    answers: dict[str, list[Any]] = {}
    for size in sorted({pair.processes for pair in pairs.values()}):
        names = [name for name, pair in pairs.items() if pair.processes == size]
        jobs = [partial(pairs[name].run, name, models[name], out, backend) for name in names]
        answers |= zip(names, on_processes(size, *jobs), strict=True)
    return {name: Both(alone[name], answers[name]) for name in pairs}


def assert_equal(both: Both, *, of_eval: float = 1e-5) -> None:
    """Losses, gradient norms and evaluation are the same."""
    torch_run, other = succeeded(both.torch)[0], succeeded(both.backend)[0]
    assert torch_run.losses[-1] < torch_run.losses[0]
    assert other.losses == pytest.approx(torch_run.losses, rel=1e-5)
    assert other.grad_norms == pytest.approx(torch_run.grad_norms, rel=1e-4)
    assert other.lines[4]["eval_loss"] == pytest.approx(torch_run.lines[4]["eval_loss"], rel=of_eval)

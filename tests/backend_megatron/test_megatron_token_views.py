"""Entropy and candidates of tokens at a temperature, values per token in and out, on Megatron's layouts.

The reference is a transformers model in plain torch: one segment at a time, all logits at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import numpy as np
import pytest
import torch
from processes import on_processes, succeeded
from tiers import tiered
from transformers import AutoModelForCausalLM

from swift.config.parse import config_from_mapping
from swift.contracts import LossSums, ModelView, Need
from swift.data.batch import Batch, MicroBatch
from swift.data.samples import Encoded, Segment
from swift.testing.subjects import conversations, write_model
from swift.train.prepare import open_job

ROWS = conversations(8)
TEMPERATURE, CANDIDATES = 0.6, 5
ODD = {"vocab_size": 267}
"""Not divisible by 2, so that the unembedding is padded."""
COMMON = {
    "tuner.kind": "full",
    "model.dtype": "float32",
    "train.global_batch": 8,
    "train.micro_batch": 2,
    "train.max_steps": 1,
    "logging.report_to": [],
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tensors": (2, {"parallel.tp": 2}),
    "stages": (2, {"parallel.pp": 2}),
    "contexts": (2, {"parallel.cp": 2}),
    "contexts, packed": (2, {"parallel.cp": 2, "data.packing": True, "data.max_length": 160}),
    "sequence parallel, stages": (4, {"parallel.tp": 2, "parallel.sequence_parallel": True, "parallel.pp": 2}),
    "sequence parallel, contexts": (4, {"parallel.tp": 2, "parallel.sequence_parallel": True, "parallel.cp": 2}),
    "interleaved": (2, {"parallel.pp": 2, "parallel.vpp": 2}),
    "data": (2, {"parallel.dp_shard": 2}),
}
QUICK = ("sequence parallel, contexts",)


class EveryTokenView:
    """Returns every view of tokens, and adds all of them up to a loss, each by another factor."""

    name = "every token view"
    needs = frozenset({Need.TOKEN_LOGPS, Need.TOKEN_ENTROPY, Need.CANDIDATE_LOGPS})
    adapters_off = False
    baseline = None
    encoding = "chat"

    def row_weight(self, samples: Iterable[Any]) -> float:
        return sum(sample.loss_weight for sample in samples)

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        assert view.token_logps is not None
        assert view.token_entropy is not None
        assert view.candidate_logps is not None
        assert view.candidate_rest is not None
        scale = batch.token_values["scale"]
        tokens = {
            "logp": view.token_logps,
            "entropy": view.token_entropy,
            "candidates": view.candidate_logps.sum(-1),
            "rest": view.candidate_rest,
            "scale": scale,
        }
        loss = (batch.weights * scale * combined(tokens)).sum()
        return LossSums(loss=loss, tokens=tokens)

    def given(self, metrics: Any) -> EveryTokenView:
        return self


def combined(tokens: dict[str, torch.Tensor]) -> torch.Tensor:
    return -tokens["logp"] + 0.3 * tokens["entropy"] - 0.1 * tokens["candidates"] + 0.2 * tokens["rest"]


def with_values(batch: Batch) -> Batch:
    """Give every token a value and candidates, by its index and id."""

    def of(segment: Segment) -> Segment:
        index = np.arange(len(segment))
        scale = (0.5 + 0.1 * (index % 7)).astype(np.float32)
        # Different ones for each token, both at the beginning and at the end of the vocabulary.
        candidates = (segment.input_ids[:, None] + 61 * np.arange(CANDIDATES)) % ODD["vocab_size"]
        return replace(segment, token_values={"scale": scale}, candidates=candidates)

    def valued(row: tuple[Encoded, ...]) -> tuple[Encoded, ...]:
        return tuple(replace(sample, segments=tuple(of(each) for each in sample.segments)) for sample in row)

    spare = None if batch.spare_row is None else valued(batch.spare_row)
    rows = [valued(row) for row in batch.rows]
    return replace(batch, rows=rows, spare_row=spare, temperature=TEMPERATURE)


@dataclass
class Measured:
    """What one process found."""

    loss: float
    grad_norm: float
    tokens: dict[int, list[dict[str, np.ndarray]]]
    """By sample."""


def measure(model: Path, out: Path, plan: dict[str, Any]) -> Measured:
    settings = {**COMMON, "model.path": str(model), "logging.output": str(out), "backend.name": "megatron", **plan}
    if "data.packing" in plan:
        settings |= {"train.global_batch": 2, "train.micro_batch": 1}
    objective = EveryTokenView()
    with open_job(config_from_mapping(settings), rows=ROWS) as job:
        batch = with_values(job.batch_schedule.batch(0, job.topology.data_rank, job.topology.data_size))
        result = job.hooks.swift_forward(job.run, job.state, batch, objective)
        assert result.tokens is not None
        samples = [sample.sample_id for row in batch.rows for sample in row]
        assert len(result.tokens) == len(samples)
        step = job.hooks.swift_train_step(job.run, job.state, batch, objective)
        assert step.loss == pytest.approx(result.loss, rel=1e-5)
    tokens = {sample: [dict(own)] for sample, own in zip(samples, result.tokens, strict=True)}
    return Measured(step.loss, step.grad_norm, tokens)


def plainly(model: Path, samples: set[int]) -> Measured:
    """Compute the same from all logits of one segment after the other."""
    settings = {**COMMON, "model.path": str(model), "logging.output": str(model.parent / "plain")}
    with open_job(config_from_mapping(settings), rows=ROWS) as job:
        batch = with_values(job.batch_schedule.batch(0, 0, 1))
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    total, weight, tokens = torch.zeros(()), 0.0, {}
    for sample in (sample for row in batch.rows for sample in row if sample.sample_id in samples):
        (segment,) = sample.segments
        ids = torch.from_numpy(segment.input_ids.astype(np.int64))[None]
        logps = (reference(input_ids=ids).logits[0, :-1] / TEMPERATURE).log_softmax(-1)
        assert segment.candidates is not None
        candidates = torch.from_numpy(segment.candidates[1:].astype(np.int64))
        others = torch.ones_like(logps).scatter(1, candidates, 0.0)
        own = {
            "logp": logps.gather(1, ids[0, 1:, None])[:, 0],
            "entropy": -(logps.exp() * logps).sum(-1),
            "candidates": logps.gather(1, candidates).sum(-1),
            "rest": (logps.exp() * others).sum(-1).log(),
            "scale": torch.from_numpy(segment.token_values["scale"][1:]),
        }
        weights = torch.from_numpy(segment.weights[1:])
        total = total + (weights * own["scale"] * combined(own)).sum()
        weight += float(weights.sum())
        learned = weights != 0
        found = {name: np.zeros(len(segment), np.float32) for name in own}
        for name, values in own.items():
            found[name][1:] = (values if name == "scale" else values * learned).detach().numpy()
        tokens[sample.sample_id] = [found]
    loss = total / weight
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in reference.parameters() if parameter.grad is not None]
    norm = float(torch.stack([each.double().norm() for each in gradients]).norm())
    return Measured(float(loss), norm, tokens)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "odd", num_hidden_layers=4, **ODD)


@pytest.mark.parametrize("name", tiered(LAYOUTS, QUICK))
def test_views_and_values_of_tokens_are_those_of_plain_torch(model: Path, tmp_path: Path, name: str) -> None:
    processes, plan = LAYOUTS[name]
    (found,) = on_processes(processes, partial(measure, model, tmp_path, plan))
    by_rank = succeeded(found)
    tokens = {sample: own for each in by_rank for sample, own in each.tokens.items()}
    ((expected,),) = (succeeded(each) for each in on_processes(1, partial(plainly, model, set(tokens))))
    for each in by_rank:
        assert each.loss == pytest.approx(expected.loss, rel=1e-5)
        assert each.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
        for sample, segments in each.tokens.items():
            for own, plain in zip(segments, expected.tokens[sample], strict=True):
                assert own.keys() == plain.keys()
                for key, values in own.items():
                    np.testing.assert_allclose(values, plain[key], rtol=1e-4, atol=1e-5, err_msg=f"{sample} {key}")

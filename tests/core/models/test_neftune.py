"""NEFTune: noise by the place of a token, equal in every layout, and none outside of training."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import on_processes, succeeded
from tiny_runs import Trained, conversations, run_training, write_model

from swift.data.batch import MicroBatch, collate
from swift.data.samples import Encoded, Segment
from swift.models.neftune import neftune_noise

ROWS = conversations(16)
GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1
WIDTH, ALPHA = 6, 5.0


def mixed(number: int) -> int:
    """splitmix64's last lines, on whole numbers without a bound."""
    number &= MASK
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & MASK
    return number ^ number >> 31


def expected(step_seed: int, sample: int, segment: int, position: int, tokens: int) -> list[float]:
    key = mixed(mixed(step_seed) + sample * GOLDEN)
    key = mixed(mixed(key + (segment + 1) * GOLDEN) + position * GOLDEN)
    size = ALPHA / math.sqrt(tokens * WIDTH)
    return [((mixed(key + (j + 1) * GOLDEN) >> 40) / 2**23 - 1 + 2**-24) * size for j in range(WIDTH)]


def sample(number: int, *lengths: int) -> Encoded:
    segments = tuple(Segment(np.arange(n, dtype=np.int32), np.ones(n, dtype=np.float32)) for n in lengths)
    return Encoded(number, segments)


def noise_of(batch: MicroBatch, step_seed: int = 77) -> torch.Tensor:
    batch.step_seed = step_seed
    return neftune_noise(batch, batch.segment_ids, WIDTH, ALPHA)


@pytest.mark.parametrize("flat", [True, False], ids=["end to end", "padded"])
def test_neftune_depends_on_seed_step_sample_and_position(flat: bool) -> None:
    """Noise follows from seed step sample segment and position."""
    lengths = {5: (3,), 2: (4, 2)}
    batch = collate([sample(number, *each) for number, each in lengths.items()], flat=flat, pad_to_multiple=4)
    found = noise_of(batch)
    places = [(number, at, n) for number, each in lengths.items() for at, n in enumerate(each)]
    for index, (number, at, tokens) in enumerate(places):
        own = found[batch.segment_ids == index]
        wanted = torch.tensor([expected(77, number, at, position, tokens) for position in range(tokens)])
        torch.testing.assert_close(own, wanted, rtol=1e-6, atol=1e-7)
    assert not found[batch.segment_ids < 0].any()
    assert not torch.equal(found, noise_of(batch, 78))


def test_neftune_noise_is_uniform_within_bound() -> None:
    batch = collate([sample(number, 512) for number in range(8)], flat=False)
    size = ALPHA / math.sqrt(512 * 64)
    values = neftune_noise(batch, batch.segment_ids, 64, ALPHA).flatten() / size
    assert values.abs().max() <= 1
    shares = torch.histc(values, bins=16, min=-1, max=1) / len(values)
    assert (shares - 1 / 16).abs().max() < 2e-3
    assert abs(torch.corrcoef(torch.stack([values[:-1], values[1:]]))[0, 1]) < 5e-3


def trained(model: Path, out: Path, **changes: Any) -> Trained:
    settings = {"train.global_batch": 8, "train.max_steps": 4, "optim.eps": 1e-6, "train.neftune_alpha": 20.0}
    return run_training(model, out, ROWS, {**settings, **changes}, validation=ROWS[:4])


def evaluations(run: Trained) -> list[float]:
    return [line["eval_loss"] for line in run.lines.values() if "eval_loss" in line]


@pytest.mark.full
def test_neftune_run_ignores_micro_batches_and_eval(tmp_path: Path) -> None:
    """A run with noise is the same in other micro-batches and is evaluated without."""
    model = write_model(tmp_path / "tiny")
    together = trained(model, tmp_path / "together", **{"train.micro_batch": 8})
    apart = trained(model, tmp_path / "apart", **{"train.micro_batch": 2, "data.padding_free": True})
    still = {"train.max_steps": 1, "train.eval_steps": 1}  # at a learning rate of 0
    noisy = trained(model, tmp_path / "noisy", **still)
    quiet = trained(model, tmp_path / "quiet", **still, **{"train.neftune_alpha": 0.0})
    assert together.losses == pytest.approx(apart.losses, rel=1e-5)
    assert together.grad_norms == pytest.approx(apart.grad_norms, rel=1e-5)
    assert abs(noisy.losses[0] - quiet.losses[0]) > 1e-4
    assert evaluations(noisy) == evaluations(quiet) != []


@pytest.mark.full
def test_neftune_matches_on_every_backend(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny")
    layouts: dict[str, dict[str, Any]] = {
        "two processes": {},
        "ulysses": {"backend.name": "fsdp", "parallel.ulysses": 2},
        "tensor parallel": {"backend.name": "fsdp", "parallel.tp": 2},
        "zero 3": {"backend.name": "deepspeed", "backend.config": "zero3"},
    }
    alone = trained(model, tmp_path / "torch")
    answers = on_processes(2, *[partial(trained, model, tmp_path / name, **plan) for name, plan in layouts.items()])
    for name, answer in zip(layouts, answers, strict=True):
        run = succeeded(answer)[0]
        assert run.losses == pytest.approx(alone.losses, rel=1e-4), name
        assert run.grad_norms == pytest.approx(alone.grad_norms, rel=1e-4), name

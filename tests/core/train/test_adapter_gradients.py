"""Adapters that nothing reaches are named after the first update."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from processes import on_processes
from tiny_runs import conversations, run_training, write_unreached

from swift.train.adapter_gradients import reached

LORA = {"tuner.kind": "lora", "tuner.dropout": 0.0, "train.max_steps": 3, "logging.steps": 1}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_unreached(tmp_path_factory.mktemp("decoder") / "bart")


def test_adapters_without_gradient_are_named_once(
    decoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the first step that changes weights: the learning rate of a warm-up begins at 0."""
    run_training(decoder, tmp_path, conversations(12), {**LORA, "optim.warmup_steps": 2})
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("adapters got no gradient") == 1
    assert "8 of 20 adapters got no gradient in step 2: encoder_attn.k_proj, encoder_attn.out_proj" in printed
    typed = re.search(r"To leave them out: --tuner.targets (.*?self_attn.v_proj)", printed)
    assert typed is not None
    targets = typed[1].split()
    run_training(decoder, tmp_path / "again", conversations(12), {**LORA, "tuner.targets": targets})
    assert "adapters got no gradient" not in capsys.readouterr().out


def test_nothing_is_printed_where_all_learn(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_training(tiny, tmp_path, conversations(12), LORA)
    assert "got no gradient" not in capsys.readouterr().out


def test_adapter_kinds_are_distinguished() -> None:
    zero, one = torch.zeros(2), torch.ones(2)
    stream = {
        "base_model.model.a.q.lora_A.weight": one,
        "base_model.model.a.q.lora_B.weight": zero,
        "base_model.model.a.k.lora_A.weight": one,
        "base_model.model.a.k.lora_B.weight": one,
        "base_model.model.a.k.bias": zero,
        "base_model.model.b.hada_w1_a": zero,
        "base_model.model.b.hada_w1_b": one,
        "base_model.model.score.weight": zero,
    }
    assert reached(iter(stream.items())) == (["a.k"], ["a.q", "b"])


def test_processes_do_not_wait_for_unreached_weights(decoder: Path, tmp_path: Path) -> None:
    """DDP gives the numbers of one process also where adapters get no gradient."""
    expected = _trained(decoder, tmp_path / "alone", accumulation=4)
    (found,) = on_processes(2, partial(_trained, decoder, tmp_path / "two", accumulation=2))
    assert found == [pytest.approx(expected, rel=1e-5)] * 2


def _trained(model: Path, output: Path, accumulation: int) -> list[float]:
    batch = {"train.micro_batch": 1, "train.accumulation": accumulation}
    run = run_training(model, output, conversations(12), {**LORA, **batch})
    return [*run.losses, *run.grad_norms]

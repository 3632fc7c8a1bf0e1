"""FSDP from the command line, as the articles and `--help` have it."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import SWIFT, noise, started, typed_on
from tiny_runs import write_unreached

from swift_testing.subjects import conversations, write_jsonl, write_model


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder in which a command is typed."""
    write_model(tmp_path / "tiny")
    write_jsonl(tmp_path / "data.jsonl", conversations(64))
    return tmp_path


def test_the_form_of_the_articles_trains_a_model_in_a_folder(place: Path) -> None:
    command = "train --model_type ./tiny --parallel_method fsdp --lora_rank 64 --use_fp16 --dataset data.jsonl"
    with started([*SWIFT, *command.split(), "--nproc", "2", "--max_steps", "2"], place) as run:
        assert run.code() == 0, run.output
        assert run.leaves_nothing()
    assert "fsdp, 2 processes" in run.output
    assert "Completed after 2 steps" in run.output
    assert noise(run.output) == []
    (adapter,) = place.glob("output/tiny/*/checkpoint-2/adapter_config.json")
    assert '"r": 64' in adapter.read_text()


@pytest.mark.full
def test_adapters_without_gradient_are_named(place: Path) -> None:
    write_unreached(place / "bart")
    command = "sft --model ./bart --dataset data.jsonl --train_type lora --max_steps 2 --warmup_steps 0 --device cpu"
    run = typed_on(2, [*command.split(), *["--backend", "fsdp"]], place)
    assert run.code == 0, run.output
    assert run.output.count("8 of 20 adapters got no gradient in step 1: encoder_attn.k_proj, encoder_attn.out") == 1

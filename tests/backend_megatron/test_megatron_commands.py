"""Megatron from the command line and from Python, as the articles have it."""

from __future__ import annotations

import runpy
from pathlib import Path

import megatron_imported  # noqa: F401
import pytest
from commands import forked, noise, typed_on

from swift_testing.subjects import conversations, write_jsonl, write_model

PLAN = "--parallel_method megatron --tensor_parallel_size 2 --pipeline_parallel_size 2 --sequence_parallel_size 2"
SCRIPT = """
from swift import MegatronArguments, Swift, TrainerConfig

megatron_args = MegatronArguments(tensor_model_parallel_size=2, pipeline_model_parallel_size=2,
                                  sequence_parallel=True, use_distributed_optimizer=False)
config = TrainerConfig(model_id='./tiny', train_type='sft', dataset='data.jsonl', max_steps=2,
                       per_device_train_batch_size=4, learning_rate=1e-5, megatron_args=megatron_args)
Swift.from_config(config).train()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder in which a command is typed."""
    write_model(tmp_path / "tiny", architecture="Llama")
    write_jsonl(tmp_path / "data.jsonl", conversations(64))
    return tmp_path


def test_the_form_of_the_articles_trains_on_four_processes(place: Path) -> None:
    command = f"sft --model_type ./tiny --dataset data.jsonl {PLAN} --max_steps 2 --torch_dtype float32"
    run = typed_on(4, command.split(), place)
    assert run.code == 0, run.output
    for expected in ("megatron, 4 processes", "tp 2", "pp 2", "portable layer", "Completed after 2 steps"):
        assert expected in run.output, run.output
    assert run.output.count("no GPU: Megatron runs on swift's portable layer") == 1
    assert noise(run.output) == []
    (adapter,) = place.glob("output/tiny/*/checkpoint-2/adapter_config.json")
    assert '"r": 8' in adapter.read_text()


def test_flash_attention_is_refused_without_a_gpu(place: Path) -> None:
    command = f"sft --model_type ./tiny --dataset data.jsonl {PLAN} --use_flash_attn true"
    run = typed_on(4, command.split(), place)
    assert run.code == 2, run.output
    assert "Error:" in run.output
    assert "flash_attention_2 (--use_flash_attn) cannot be used: it needs an NVIDIA GPU" in run.output


def test_the_python_of_the_articles_trains_on_four_processes(place: Path) -> None:
    (place / "train.py").write_text(SCRIPT)
    run = forked(4, lambda: runpy.run_path("train.py", run_name="__main__"), place)
    assert run.code == 0, run.output
    assert "megatron, 4 processes" in run.output
    assert "Completed after 2 steps" in run.output

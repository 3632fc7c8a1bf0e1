"""Megatron from the command line and from Python, as the articles have it, and a process that dies in mid-step."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from commands import SWIFT, noise, sabotage, sft, started

from swift.testing.subjects import conversations, write_jsonl, write_model

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
    command = f"sft --model_type ./tiny --dataset data.jsonl {PLAN} --nproc 4 --max_steps 2 --torch_dtype float32"
    with started([*SWIFT, *command.split()], place) as run:
        assert run.code() == 0, run.output
        assert run.leaves_nothing()
    for expected in ("megatron, 4 processes", "tp 2", "pp 2", "portable layer", "Completed after 2 steps"):
        assert expected in run.output, run.output
    assert run.output.count("no GPU: Megatron runs on swift's portable layer") == 1
    assert noise(run.output) == []
    (adapter,) = place.glob("output/tiny/*/checkpoint-2/adapter_config.json")
    assert '"r": 8' in adapter.read_text()


def test_flash_attention_is_refused_without_a_gpu(place: Path) -> None:
    command = f"sft --model_type ./tiny --dataset data.jsonl {PLAN} --nproc 4 --use_flash_attn true"
    with started([*SWIFT, *command.split()], place) as run:
        assert run.code() == 2, run.output
    assert run.output.count("Error:") == 1
    assert "flash_attention_2 cannot be used: it needs an NVIDIA GPU" in run.output


def test_the_python_of_the_articles_trains_on_four_processes(place: Path) -> None:
    (place / "train.py").write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "train.py"]
    with started(launcher, place) as run:
        assert run.code() == 0, run.output
    assert "megatron, 4 processes" in run.output
    assert "Completed after 2 steps" in run.output


def test_a_process_that_dies_in_mid_step_ends_the_others_and_is_named(place: Path) -> None:
    environment = sabotage(place, 1, "os.kill(os.getpid(), 9)")
    command = sft("--backend", "megatron", "--pp", "2", "--nproc", "2", "--max_steps", "500", "--save_steps", "1")
    with started(command, place, environment) as run:
        run.until("step 1/500")
        begin = time.monotonic()
        assert run.code() == 1, run.output
        assert run.leaves_nothing()
        assert time.monotonic() - begin < 60
    assert run.output.count("Error:") == 1
    assert "Process 1 was killed by SIGKILL" in run.output
    assert "checkpoint-1" in run.output
    assert noise(run.output) == []

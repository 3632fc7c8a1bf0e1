"""A tiny model that vLLM serves on the CPU, adapters of it, and one running server for all tests that ask one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

KEY = "a-key-that-nobody-sees"


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python for what is asked in a process of its own has imported vLLM already."""
    from imported import interpreter

    monkeypatch.setattr(sys, "executable", str(interpreter()))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 with random weights; vLLM has attention on the CPU for heads of 32 and more."""
    from tiny_runs import write_model

    return write_model(tmp_path_factory.mktemp("models") / "small", head_dim=32, initializer_range=0.2)


@pytest.fixture(scope="session")
def adapters(small: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters of it, of different rank, that change every answer."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("adapters")
    for number, name in enumerate(("second", "third")):
        torch.manual_seed(number)
        base = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32)
        config = LoraConfig(r=4 * (number + 1), lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(base, config)
        for weight_name, weight in model.named_parameters():
            if "lora_" in weight_name:
                torch.nn.init.normal_(weight, std=0.1)
        model.save_pretrained(folder / name)
    return {name: folder / name for name in ("second", "third")}


@pytest.fixture(scope="session")
def lora_run(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that trained an adapter of it."""
    from tiny_runs import run_training

    rows = [{"query": "colour?", "response": "blue"}, {"query": "number?", "response": "forty-two"}]
    changes = {
        "train.max_steps": 20,
        "optim.lr": 2e-2,
        "tuner.kind": "lora",
        "tuner.dropout": 0.0,
        "checkpoint.save_steps": 20,
        "logging.run_name": "first",
    }
    return run_training(small, tmp_path_factory.mktemp("runs"), rows, changes).folder


@pytest.fixture(scope="session")
def served(
    small: Path, adapters: dict[str, Path], lora_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[object]:
    """The run's adapter `first` and `second` on the model `small`; `third` may be loaded. Ended by killing swift."""
    from served import READY, Served, all_gone, serving

    words = [str(lora_run), "--adapters", f"second={adapters['second']}", "--runtime-adapters", "--max-num-seqs", "4"]
    # With a worker in a process of its own, as users have it.
    environment = {"SWIFT_API_KEY": KEY, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "auto"}
    with serving(tmp_path_factory.mktemp("served"), *words, environment=environment, by_itself=True) as run:
        run.until(READY)
        folders = {"small": small, "first": lora_run / "checkpoint-20", **adapters}
        server = Served(run, KEY, folders)
        yield server
        processes = server.processes()
        assert len(processes) > 4, "swift, its guard, the server, its engine, the worker"
        psutil.Process(run.process.pid).kill()
        assert all_gone(processes), f"killing swift left processes behind: {processes}"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A run of the demo's task, trained once for all tests."""
    from trained_demo import train_demo

    return train_demo(tmp_path_factory.mktemp("trained"))

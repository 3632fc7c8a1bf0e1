"""DeepSpeed from the command line with a file of the articles, and plans that are refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import noise, started, typed_on
from processes import on_processes
from tiny_runs import run_training, write_unreached

from swift.errors import ConfigError, TrainingError, UnsupportedLayout
from swift_testing.crew import free_port
from swift_testing.subjects import conversations, write_jsonl, write_model

ARTICLE = {
    "train_batch_size": 16,
    "gradient_accumulation_steps": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "weight_decay": 0.01}},
    "fp16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "overlap_comm": True,
        "reduce_bucket_size": 5e8,
        "stage3_prefetch_bucket_size": 5e8,
        "stage3_param_persistence_threshold": 1e6,
    },
    "activation_checkpointing": {"cpu_checkpointing": True},
}
"""With a smaller batch."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder in which a command is typed."""
    write_model(tmp_path / "tiny")
    write_jsonl(tmp_path / "data.jsonl", conversations(64))
    (tmp_path / "ds_config_zero3.json").write_text(json.dumps(ARTICLE))
    return tmp_path


def test_swift_articles_example_trains_and_resumes_elsewhere(place: Path) -> None:
    """The form of the article's trains and goes on with another backend."""
    command = "sft --model_type ./tiny --dataset data.jsonl --deepspeed ds_config_zero3.json --max_steps 2"
    run = typed_on(2, [*command.split(), "--logging_steps", "1"], place, {"DS_ACCELERATOR": "cpu"})
    assert run.code == 0, run.output
    for expected in ("deepspeed, 2 processes", "float16", "--gradient_checkpointing true", "Completed after 2 steps"):
        assert expected in run.output, run.output
    assert noise(run.output) == []
    (folder,) = place.glob("output/tiny/v*")
    settings = json.loads((folder / "args.json").read_text())
    assert settings["train.micro_batch"] == 2
    assert settings["optim.lr"] == 2e-5
    onward = "sft --model ./tiny --dataset data.jsonl --backend torch --torch_dtype float32 --max_steps 4"
    onward += f" --optim.lr 2e-5 --optim.weight_decay 0.01 --resume_from_checkpoint {folder / 'checkpoint-2'}"
    run = typed_on(1, onward.split(), place)
    assert run.code == 0, run.output
    assert "at step 2 of 4" in run.output


@pytest.mark.full
def test_deepspeed_launcher_starts_script_on_hostfile_hosts(place: Path) -> None:
    """The DeepSpeed launcher starts a script on the hosts of a file."""
    (place / "hostfile").write_text("localhost slots=2\n")
    here = f"--hostfile hostfile --no_ssh --node_rank 0 --master_addr 127.0.0.1 --master_port {free_port()}"
    training = "--model_id ./tiny --train_type sft --dataset data.jsonl --deepspeed zero3 --max_steps 2"
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", *here.split()]
    script = str(Path(__file__).parents[2] / "examples" / "train.py")
    with started([*launcher, script, *training.split()], place) as run:
        assert run.code() == 0, run.output
        assert run.leaves_nothing()
    assert "deepspeed, 2 processes (zero 3, dp 2)" in run.output
    assert run.output.count("Completed after 2 steps") == 1


@pytest.mark.full
def test_adapters_without_gradient_are_named(place: Path) -> None:
    write_unreached(place / "bart")
    command = "sft --model ./bart --dataset data.jsonl --train_type lora --max_steps 2 --warmup_steps 0 --device cpu"
    run = typed_on(2, [*command.split(), *["--deepspeed", "zero3"]], place)
    assert run.code == 0, run.output
    assert run.output.count("8 of 20 adapters got no gradient in step 1: encoder_attn.k_proj, encoder_attn.out") == 1


LORA = {"tuner.kind": "lora"}
QLORA = {**LORA, "tuner.quantize": "bnb-nf4"}
BATCH = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}


def nvme(stage: int = 3, **section: Any) -> dict[str, Any]:
    """Offload of the optimizer to a disk."""
    place = {"device": "nvme", "nvme_path": "/tmp", **section}
    return {"backend.config": {"zero_optimization": {"stage": stage, "offload_optimizer": place}}}


def zero3(**keys: Any) -> dict[str, Any]:
    return {"backend.config": {"zero_optimization": {"stage": 3, **keys}}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more shards than processes": ({"parallel.dp_shard": 4}, "needs 4 processes, but 2 were started"),
    "ulysses beyond the processes": ({"parallel.ulysses": 4}, "needs 4 processes, but 2 were started"),
    "dora of quantised weights under zero 3": (
        {**QLORA, "tuner.dora": True, "backend.config": "zero3"},
        "ZeRO 3 gathers those of tuner.quantize bnb-nf4",
    ),
    "packed weights that are quantised again": (
        {**QLORA, **zero3(zero_quantized_weights=True)},
        "zero_quantized_weights changes bits of weights on their way",
    ),
    "packed weights that are added up": (
        {**QLORA, **zero3(use_all_reduce_for_fetch_params=True)},
        "use_all_reduce_for_fetch_params changes bits of weights on their way",
    ),
    "packed weights under autocast": (
        {**QLORA, "backend.config": {"zero_optimization": {"stage": 3}, "torch_autocast": {"enabled": True}}},
        "torch_autocast changes bits of weights on their way",
    ),
    "a format that ZeRO does not know": ({**LORA, "tuner.quantize": "torchao-nf4"}, "torchao-nf4"),
    "tensor parallel under zero 3": (
        {"parallel.tp": 2, "backend.config": "zero3"},
        "cut into flat pieces as they are read, before AutoTP",
    ),
    "tensor parallel of quantised weights": (
        {**LORA, "tuner.quantize": "bnb-nf4", "parallel.tp": 2},
        "tuner.quantize bnb-nf4 cannot be used with parallel.tp 2",
    ),
    "adafactor": ({"optim.name": "adafactor"}, "the optimizer 'adafactor' (it needs whole rows of weights)"),
    "nvme below zero 3": (nvme(stage=2), "only stage 3 swaps it to nvme"),
    "nvme without a folder": (nvme(nvme_path=None), "needs a folder"),
    "nvme that is not there": (nvme(nvme_path="/no/such/disk"), "/no/such/disk is not a folder"),
    "nvme that cannot be written to": (nvme(nvme_path="/proc"), "/proc cannot be written to"),
    "nvme with pieces in flight": (nvme(pipeline_write=True), "which a checkpoint would miss"),
    "nvme and a save in the background": (
        {**nvme(), "checkpoint.asynchronous": True},
        "which training has to wait for",
    ),
    "offload without a stage": (
        {"backend.config": {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}},
        "needs a ZeRO stage from 1",
    ),
    "batch": ({"backend.config": BATCH}, "train_batch_size is 64, but micro-batch 4 × accumulation 4 × 2 data ranks"),
}


def test_unsupported_layouts_are_refused_with_hint(place: Path) -> None:
    odd = write_model(place / "odd", num_hidden_layers=1, num_attention_heads=3, num_key_value_heads=1)
    jobs = [(place / "tiny", changes) for changes, _ in REFUSED.values()]
    said = [reason for _, reason in REFUSED.values()]
    jobs.append((odd, {"parallel.ulysses": 2}))
    said.append("3 attention heads are not divisible by parallel.ulysses 2")
    jobs.append((odd, {"parallel.tp": 2}))
    said.append("3 attention heads with 1 key-value heads are not divisible by parallel.tp 2")

    def job(folder: Path, changes: dict[str, Any]) -> Any:
        settings = {"backend.name": "deepspeed", **changes}
        return lambda: run_training(folder, place / "out", conversations(9), settings)

    for answers, reason in zip(on_processes(2, *(job(*each) for each in jobs), fresh=True), said, strict=True):
        for answer in answers:
            assert isinstance(answer, UnsupportedLayout | ConfigError), answer
            assert reason in answer.message
            assert answer.hint
    assert not (place / "out").exists()


def test_out_of_memory_error_names_active_settings(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit into memory names the settings in force."""
    import torch

    def too_much(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def job() -> Any:
        import swift_backend_deepspeed.step as step

        monkeypatch.setattr(step, "accumulate", too_much)
        settings = {"backend.name": "deepspeed", "backend.config": "zero2", "train.micro_batch": 4}
        return run_training(place / "tiny", place / "out", conversations(9), settings)

    ((answer,),) = on_processes(1, job, fresh=True)
    assert isinstance(answer, TrainingError), answer
    for expected in (
        "2.00 GiB",
        "--train.micro_batch 4",
        "reduce_bucket_size 500,000,000",
        "zero3",
        "offload_optimizer",
    ):
        assert expected in str(answer)

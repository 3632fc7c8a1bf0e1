"""Adapters on weights in 4 bits: a checkpoint of ZeRO 3 resumes on FSDP2 with the same numbers, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import typed_on
from tiny_runs import conversations, write_jsonl, write_model

pytestmark = pytest.mark.full
ZERO3 = ["--deepspeed", "zero3"]
FSDP = ["--backend", "fsdp"]


def losses(folder: Path, name: str, *words: str) -> dict[int, float]:
    """Train QLoRA on two processes; returns the loss of each step."""
    typed = (
        "sft --model model --dataset rows.jsonl --train_type lora --quant_bits 4 --lora_dropout 0 --max_steps 4 "
        "--save_steps 2 --learning_rate 1e-3 --per_device_train_batch_size 2 --logging_steps 1 --data.shuffle false "
        f"--data.workers 1 --backend.device cpu --report_to jsonl --output_dir {name} --logging.run_name run"
    )
    ended = typed_on(2, [*typed.split(), *words], folder, {"OMP_NUM_THREADS": "1"})
    assert ended.code == 0, ended.output
    (log,) = (folder / name).rglob("logging.jsonl")
    lines = map(json.loads, log.read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def test_quantised_runs_resume_on_the_other_backend(tmp_path: Path) -> None:
    write_model(tmp_path / "model", hidden_size=128, intermediate_size=256, head_dim=32)
    write_jsonl(tmp_path / "rows.jsonl", conversations(24))
    begun = {"zero3": losses(tmp_path, "zero3", *ZERO3), "fsdp": losses(tmp_path, "fsdp", *FSDP)}
    assert len(begun["zero3"]) == len(begun["fsdp"]) == 4
    for source, words in (("zero3", FSDP), ("fsdp", ZERO3)):
        (checkpoint,) = (tmp_path / source).rglob("checkpoint-2")
        resumed = losses(tmp_path, f"after-{source}", *words, "--resume_from_checkpoint", str(checkpoint))
        assert sorted(resumed) == [3, 4]
        for step, loss in resumed.items():
            assert loss == pytest.approx(begun[source][step], abs=1e-5), (source, step)

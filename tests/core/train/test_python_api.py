"""The two Python snippets of the articles, with a local model, train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import Dataset
from tiny_runs import conversations, write_jsonl

from swift import Swift, SwiftModel, Trainer, TrainerConfig
from swift.config.parse import config_from_mapping
from swift.errors import UsageError


def test_a_trainer_with_rows_in_memory_trains(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = SwiftModel.from_pretrained(tiny)
    trainer = Trainer(
        model=model,
        args={
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 4,
            "fp16": True,
            "backend": {"device": "cpu"},
        },
        train_dataset=Dataset.from_list(conversations(40)),
        eval_dataset=conversations(4, seed=2),
    )
    summary = trainer.train()
    assert (summary.status, summary.steps) == ("completed", 3)
    assert summary.last_checkpoint is not None
    assert (summary.last_checkpoint / "adapter_model.safetensors").is_file()
    (folder,) = (tmp_path / "output").glob("*/*")
    args = json.loads((folder / "args.json").read_text())
    assert (args["train.global_batch"], args["model.dtype"]) == (16, "float16")
    assert (folder / "report.html").is_file()


def test_a_run_described_by_keywords_trains(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = write_jsonl(tmp_path / "data.jsonl", conversations(9))
    config = TrainerConfig(
        model_id=str(tiny),
        train_type="sft",
        dataset=str(data),
        max_epochs=3,
        per_device_train_batch_size=4,
        learning_rate=1e-5,
        backend={"device": "cpu"},
    )
    summary = Swift.from_config(config).train()
    assert (summary.status, summary.steps) == ("completed", 9)
    (folder,) = (tmp_path / "output").glob("*/*")
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-6", "checkpoint-9"]


def test_python_api_iterates_steps_and_may_stop_early(tiny: Path, tmp_path: Path) -> None:
    """A program iterates over the steps of a run and may leave it."""
    settings = {
        "model.path": str(tiny), "logging.output": str(tmp_path), "logging.run_name": "run", "train.max_steps": 4,
        "train.global_batch": 2, "train.micro_batch": 2, "checkpoint.save_steps": 1, "backend.device": "cpu",
    }  # fmt: skip
    seen = []
    for record in Swift(config_from_mapping(settings), rows=conversations(9)).steps():
        saved = sorted(path.name for path in (tmp_path / tiny.name / "run").glob("checkpoint-*"))
        seen.append((record.step, saved[-1]))
        if record.step == 2:
            break
    assert seen == [(1, "checkpoint-1"), (2, "checkpoint-2")]
    with pytest.raises(UsageError, match="No model is given"):
        next(Swift(config_from_mapping({})).steps())

"""Checkpoints of models that return scores or vectors: from the real Trainer, on with training, and back to it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hf_trainer import ARGUMENTS, STEPS, Rows, held_by, write_args_of_ms_swift
from peft import LoraConfig, PeftModel, get_peft_model
from test_convert_from_trainer import check_equal
from test_convert_to_trainer import AtTheStart
from tiny_runs import run_training, write_model
from transformers import AutoModel, AutoModelForSequenceClassification, Trainer, TrainingArguments

from swift.checkpoint import open_checkpoint
from swift.errors import CheckpointError
from swift_migrate.convert import run as convert_run
from swift_migrate.convert.run import convert_checkpoint
from swift_migrate.convert.write import convert_to

CLASSES: list[dict[str, Any]] = [{"text": str(n) * 3, "label": n % 3} for n in range(16)]
PAIRS: list[dict[str, Any]] = [{"prompt": str(n), "chosen": "yes " * (1 + n % 2), "rejected": "no"} for n in range(16)]
QUERIES: list[dict[str, Any]] = [{"query": str(n), "positive": str(n) * 4} for n in range(16)]
TASKS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "seq_cls": ({"objective.name": "seq_cls", "model.num_labels": 3}, CLASSES),
    "adapter": ({"objective.name": "seq_cls", "model.num_labels": 3}, CLASSES),
    "reward": ({"objective.name": "rm"}, PAIRS),
    "embedding": ({"objective.name": "embedding"}, QUERIES),
}

COMMANDS = {
    "seq_cls": "swift sft --task_type seq_cls --num_labels 3 --model ",
    "adapter": "swift sft --task_type seq_cls --num_labels 3 --model ",
    "reward": "swift rlhf --rlhf_type rm --model ",
    "embedding": "swift sft --task_type embedding --model.pooling last --model ",
}


class Classes(Rows):
    """The rows of the language models, each with a class."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {**super().__getitem__(index), "labels": torch.tensor(index % 3)}


class AnyLoss(Trainer):
    """Minimises something that every weight has a part in, whatever the model returns."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss: torch.Tensor = ((outputs[0].flatten(1)[:, 0] - labels) ** 2).mean() + outputs[0].square().mean()
        return loss


def model_of(base: Path, name: str) -> Any:
    """As users of the Trainer load it."""
    torch.manual_seed(5)
    if name == "embedding":
        return AutoModel.from_pretrained(base, dtype=torch.float32)
    labels = 1 if name == "reward" else 3
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=labels, pad_token_id=256, dtype=torch.float32
    )
    if name == "seq_cls":
        model.config.id2label = {0: "red", 1: "green", 2: "blue"}
    if name != "adapter":
        return model
    return get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=["q_proj"]))


def loaded(base: Path, folder: Path, name: str) -> Any:
    """What a user of the Trainer makes of a folder, to resume from it."""
    if name == "adapter":
        return PeftModel.from_pretrained(
            AutoModelForSequenceClassification.from_pretrained(base, num_labels=3, pad_token_id=256),
            str(folder),
            is_trainable=True,
        )
    kind = AutoModel if name == "embedding" else AutoModelForSequenceClassification
    return kind.from_pretrained(folder, dtype=torch.float32)


def trainer_of(model: Any, out: Path, **changes: Any) -> Any:
    return AnyLoss(
        model=model,
        args=TrainingArguments(output_dir=str(out), remove_unused_columns=False, **{**ARGUMENTS, **changes}),
        train_dataset=Classes(),
    )


def converted(path: Path, out: Path, **named: Any) -> tuple[Path, list[str]]:
    said: list[str] = []
    return convert_checkpoint(path, **{"model": None, "adapter_config": None, **named}, out=out, say=said.append), said


@pytest.mark.parametrize(
    "name", ["adapter", *(pytest.param(name, marks=pytest.mark.full) for name in TASKS if name != "adapter")]
)
def test_scoring_model_round_trips_with_trainer(tmp_path: Path, name: str) -> None:
    """A model that scores comes from the trainer trains on and goes back."""
    base = write_model(tmp_path / "model")
    trainer = trainer_of(model_of(base, name), tmp_path / "trained")
    trainer.train()
    held = held_by(trainer)
    folder, said = converted(tmp_path / "trained" / f"checkpoint-{STEPS}", tmp_path / "out", model=str(base))
    check_equal(folder, held)
    assert COMMANDS[name] in said[-1]
    settings, rows = TASKS[name]
    tuner = {"tuner.kind": "lora", "tuner.adapter": str(folder)} if name == "adapter" else {}
    changes = {**settings, **tuner, "checkpoint.resume": str(folder), "train.max_steps": 5, "optim.warmup_steps": 0}
    run = run_training(base, tmp_path / "runs", rows, {**changes, "checkpoint.save_steps": 5})
    assert list(run.lines) == [4, 5]
    stored = run.folder / "checkpoint-5"
    back = convert_to(stored, to="trainer", out=tmp_path / "checkpoint-5", say=said.append)
    again = trainer_of(loaded(base, back, name), tmp_path / "again", max_steps=6)
    callback = AtTheStart()
    callback.trainer = again
    again.add_callback(callback)
    again.train(resume_from_checkpoint=str(back))
    assert callback.step == 5
    check_equal(stored, callback.held, step=5)
    round_trip, _ = converted(back, tmp_path / "round", model=str(base))
    assert sorted(open_checkpoint(round_trip).names()) == sorted(open_checkpoint(stored).names())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base") / "model")


def saved(base: Path, folder: Path, name: str, **config: Any) -> Path:
    """A folder as `save_pretrained` leaves it, with more in its config.json."""
    model_of(base, name).save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return folder


def model_section(folder: Path) -> dict[str, Any]:
    section: Any = open_checkpoint(folder).facts.config["model"]
    return {key: section[key] for key in ("task", "num_labels", "labels", "problem_type")}


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # what: model, its config.json, args.json of ms-swift, what becomes of it
    "labels": (
        "seq_cls",
        {"problem_type": "multi_label_classification"},
        {},
        {"num_labels": 3, "labels": ["red", "green", "blue"], "problem_type": "multi_label_classification"},
    ),
    "one score": ("reward", {}, {}, {"task": "reward"}),
    "a number": ("reward", {"problem_type": "regression"}, {}, {"num_labels": 1, "problem_type": "regression"}),
    "rm of ms-swift": (
        "reward", {"problem_type": "regression"}, {"rlhf_type": "rm", "task_type": "seq_cls"}, {"task": "reward"},
    ),
    "reranker of ms-swift": ("reward", {}, {"task_type": "reranker"}, {"num_labels": 1}),
    "odd args.json": ("reward", {}, {"task_type": ["seq_cls"], "problem_type": 3}, {"task": "reward"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_files_tell_what_a_model_scores(base: Path, tmp_path: Path, case: str) -> None:
    name, config, arguments, expected = CASES[case]
    path = saved(base, tmp_path / "run" / "saved", name, **config)
    if arguments:
        write_args_of_ms_swift(tmp_path / "run", **arguments)
    folder, said = converted(path, tmp_path / "out", model=str(base))
    plain = {"task": "seq_cls", "num_labels": None, "labels": [], "problem_type": None}
    assert model_section(folder) == plain | expected
    guessed = any("--task" in line and "one score" in line for line in said)
    assert guessed == (case in ("one score", "a number", "odd args.json"))
    if case == "reranker of ms-swift":
        assert "swift sft --task_type reranker --model" in said[-1]


def test_user_supplies_what_files_omit(base: Path, tmp_path: Path) -> None:
    path = saved(base, tmp_path / "saved", "reward")
    folder, said = converted(path, tmp_path / "out", model=str(base), task="seq_cls")
    assert model_section(folder)["task"] == "seq_cls"
    assert not any("one score" in line for line in said)
    assert "--task_type seq_cls --num_labels 1" in said[-1]
    with pytest.raises(CheckpointError, match=r"has no head \(score\.weight\), which task reward needs.*\n.*causal_lm"):
        converted(base, tmp_path / "none", task="reward")


@pytest.mark.full
def test_backends_write_and_read_models_that_score(base: Path, tmp_path: Path) -> None:
    for name in ("seq_cls", "embedding"):
        settings, rows = TASKS[name]
        changes = {**settings, "train.max_steps": 2, "checkpoint.save_steps": 2}
        stored = run_training(base, tmp_path / name, rows, changes).folder / "checkpoint-2"
        before = open_checkpoint(stored)
        for to in ("deepspeed", "megatron"):
            handed = convert_to(stored, to=to, out=tmp_path / f"{name}-{to}", say=lambda _: None)
            out = tmp_path / f"{name}-{to}-back"
            after = open_checkpoint(converted(handed, out, model=str(base), task=name)[0])
            assert sorted(before.names()) == sorted(after.names())
            for each in before.names():
                assert torch.equal(before.read(each), after.read(each)), (to, each)


@pytest.mark.parametrize(
    ("step", "rows", "said"),
    [(-1, 8, "invalid step -1"), (3, True, "rows per step True"), (3, 2**60, "rows per step 1")],
)
def test_counts_that_no_training_has_are_refused(
    step: int, rows: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = SimpleNamespace(step=step, rows_per_step=rows)
    monkeypatch.setattr(convert_run, "_recognised", lambda *_, **__: told)
    with pytest.raises(CheckpointError, match=said):
        convert_checkpoint(tmp_path, model=None, out=tmp_path / "out", adapter_config=None, say=print)

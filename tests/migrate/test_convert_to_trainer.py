"""Checkpoints of swift, handed to the real Trainer, which resumes with the same bits; and taken back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_trainer import held_by, model_of, train, trainer_of
from safetensors.torch import load_file
from test_convert_from_trainer import MODELS, on_disk
from tiny_runs import conversations, run_training, write_model
from transformers import TrainerCallback

from swift.checkpoint import open_checkpoint
from swift.errors import CheckpointError, UsageError
from swift_migrate.convert.run import convert_checkpoint
from swift_migrate.convert.write import convert_to

SETTINGS: dict[str, Any] = {
    "train.max_steps": 6,
    "checkpoint.save_steps": 3,
    "optim.weight_decay": 0.05,
    "optim.beta2": 0.9,
    "optim.schedule": "linear",
    "train.micro_batch": 2,
}
LORA: dict[str, Any] = {"tuner.kind": "lora", "tuner.rank": 4, "tuner.targets": ["q_proj", "down_proj"]}


class AtTheStart(TrainerCallback):
    """Remembers what the Trainer holds when it has resumed, before its first step."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.held: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.held is None:
            self.held = held_by(self.trainer)
            self.step = state.global_step


def resumed(model: Any, folder: Path, out: Path) -> AtTheStart:
    """What the Trainer has in memory after `resume_from_checkpoint`."""
    trainer = trainer_of(
        model, out, max_steps=4, save_steps=4, learning_rate=1.0, lr_scheduler_type="linear", warmup_steps=2
    )
    callback = AtTheStart()
    callback.trainer = trainer
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=str(folder))
    assert trainer.state.global_step == 4
    assert (out / "checkpoint-4" / "trainer_state.json").is_file()
    return callback


def peft_model(base: Path, folder: Path) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(model_of(base), str(folder), is_trainable=True)


@pytest.mark.parametrize("name", MODELS)
def test_the_trainer_resumes_with_the_same_bits(tmp_path: Path, name: str) -> None:
    model = write_model(tmp_path / "model", **MODELS[name])
    run = run_training(model, tmp_path / "runs", conversations(16), {**SETTINGS, **(LORA if name == "lora" else {})})
    stored = run.folder / "checkpoint-3"
    said: list[str] = []
    folder = convert_to(stored, to="trainer", out=tmp_path / "checkpoint-3", say=said.append)
    assert (folder / "tokenizer.json").is_file()
    start = model if name != "experts" else folder
    assert any("from_pretrained" in line for line in said) == (name == "experts")
    begun = resumed(peft_model(model, folder) if name == "lora" else model_of(start), folder, tmp_path / "resumed")
    checkpoint = open_checkpoint(stored)
    assert begun.step == 3
    assert begun.held.weights
    for memory, weight in begun.held.weights.items():
        for disk, part in on_disk(memory, weight).items():
            assert torch.equal(checkpoint.read(f"model.{disk}"), part), disk
            assert checkpoint.read(f"optim.{disk}.step") == begun.held.state[memory]["step"] == 3
        for slot in ("exp_avg", "exp_avg_sq"):
            for disk, part in on_disk(memory, begun.held.state[memory][slot]).items():
                assert torch.equal(checkpoint.read(f"optim.{disk}.{slot}"), part), (disk, slot)
    assert begun.held.learning_rate == pytest.approx(run.lines[4]["learning_rate"], rel=1e-6)
    decayed, rest = begun.held.groups
    assert (decayed["weight_decay"], rest["weight_decay"], decayed["betas"]) == (0.05, 0.0, (0.9, 0.9))


@pytest.mark.parametrize("name", ["tied", "lora", "experts"])
def test_there_and_back_changes_no_bit(tmp_path: Path, name: str) -> None:
    model = write_model(tmp_path / "model", **MODELS[name])
    changes = {**SETTINGS, **(LORA if name == "lora" else {})}
    stored = run_training(model, tmp_path / "runs", conversations(16), changes).folder / "checkpoint-3"
    handed = convert_to(stored.parent / "checkpoint-3", to="trainer", out=tmp_path / "handed", say=lambda _: None)
    back = convert_checkpoint(handed, model=str(model), out=tmp_path / "back", adapter_config=None, say=lambda _: None)
    first, second = open_checkpoint(stored), open_checkpoint(back)
    assert sorted(first.names()) == sorted(second.names())
    for each in first.names():
        assert torch.equal(first.read(each), second.read(each)), each
    again = convert_to(back, to="trainer", out=tmp_path / "again", say=lambda _: None)
    before, after = (torch.load(each / "optimizer.pt", weights_only=True) for each in (handed, again))
    assert before["param_groups"][0]["weight_decay"] == after["param_groups"][0]["weight_decay"] == 0.05
    assert before["param_groups"][0]["initial_lr"] == after["param_groups"][0]["initial_lr"]


def test_run_resolves_to_last_checkpoint_and_becomes_model(tmp_path: Path) -> None:
    """A run stands for its last checkpoint and becomes a model."""
    model = write_model(tmp_path / "model")
    run = run_training(model, tmp_path / "runs", conversations(16), {**SETTINGS, "checkpoint.save_steps": 3})
    folder = convert_to(run.folder, to="hf", out=tmp_path / "hf", say=lambda _: None)
    checkpoint = open_checkpoint(run.folder / "checkpoint-6")
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert torch.equal(checkpoint.read(f"model.{name}"), tensor)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    trained = train(model, tmp_path / "trained")[0]
    stored = convert_checkpoint(
        trained, model=str(model), out=tmp_path / "in", adapter_config=None, say=lambda _: None, weights_only=True
    )
    with pytest.raises(UsageError, match=r"Unknown format 'trainr'. Did you mean 'trainer'"):
        convert_to(stored, to="trainr", out=tmp_path / "out", say=lambda _: None)
    said: list[str] = []
    folder = convert_to(stored, to="trainer", out=tmp_path / "out", say=said.append)
    assert not (folder / "optimizer.pt").exists()
    assert any("weights and step only" in line for line in said)
    with pytest.raises(CheckpointError, match="already exists") as caught:
        convert_to(stored, to="trainer", out=tmp_path / "out", say=lambda _: None)
    assert caught.value.hint == "Choose another folder with --out."


def test_the_command_tells_directions_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from swift.cli.plugin_command import run as run_command
    from swift.plugins.load import find

    run = partial(run_command, [find("swift.commands", "convert")])
    model = write_model(tmp_path / "model")
    assert run([str(model), "--out", str(tmp_path / "in")]) == 0
    stored = tmp_path / "in" / "checkpoint-0"
    assert f"--train_type full --dataset DATA --resume_from_checkpoint {stored}" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"is already a checkpoint of swift.\n?.*"):
        run([str(stored), "--out", str(tmp_path / "out")])
    with pytest.raises(UsageError, match="--to needs a checkpoint of swift"):
        run([str(model), "--to", "trainer", "--out", str(tmp_path / "out")])
    with pytest.raises(UsageError, match="--to takes no other options"):
        run([str(stored), "--to", "trainer", "--model", str(model), "--out", str(tmp_path / "out")])
    assert run([str(stored), "--to", "trainer", "--out", str(tmp_path / "out")]) == 0
    assert "has no AdamW state" in capsys.readouterr().out
    assert (tmp_path / "out" / "model.safetensors").is_file()

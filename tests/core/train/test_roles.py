"""Models of a run besides its policy: refused where a backend holds one, saved under own names, or only asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import BASE, conversations

from swift.backends.torch.plugin import DataParallelBackend
from swift.checkpoint import open_checkpoint
from swift.config.sections import ModelSection, OptimSection, TunerSection
from swift.contracts import Capabilities, ModelRole, Need, Reads
from swift.errors import CheckpointError, SwiftError, UnsupportedLayout
from swift.objectives.score import SegmentScore
from swift.parsing import config_from_mapping
from swift.train import Loop, open_job

ROWS = conversations(9)


@contextmanager
def opened(model: Path, output: Path, roles: Sequence[ModelRole] = (), **more: Any) -> Iterator[Any]:
    settings = {
        **BASE, "model.path": str(model), "logging.output": str(output), "logging.run_name": "run",
        "train.global_batch": 2, "train.micro_batch": 2, "train.max_steps": 4, "checkpoint.save_steps": 2, **more,
    }  # fmt: skip
    with open_job(config_from_mapping(settings), rows=ROWS, roles=roles) as job:
        yield job


def test_too_many_roles_are_refused_before_weights_load(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More models than a backend holds are refused before weights are read."""
    monkeypatch.setattr(DataParallelBackend, "capabilities", replace(DataParallelBackend.capabilities, roles=1))
    nowhere = ModelRole("critic", ModelSection(path=str(tmp_path / "nothing here")))
    with (
        pytest.raises(UnsupportedLayout, match=r"2 models at once \(policy, critic\); the torch backend holds 1"),
        opened(tiny, tmp_path, [nowhere]),
    ):
        pass


@pytest.mark.parametrize(
    ("role", "lacking"),
    [
        (
            {"tuner": TunerSection(kind="lora", dora=True)},
            r"critic .*\. The torch backend does not support tuner\.dora",
        ),
        ({"optim": OptimSection(name="adafactor")}, "the optimizer 'adafactor' \\(it needs whole rows of weights\\)"),
        ({"model": ModelSection(path="nothing here", task="value")}, r"model\.task value \(it needs"),
        ({"model": ModelSection(path="nothing here", num_labels=3)}, "needs a model with labels"),
    ],
)
def test_untrainable_role_is_refused_before_weights_load(
    role: dict[str, Any], lacking: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role that the backend cannot train is refused before weights are read."""
    able = Capabilities(
        tuners=frozenset({"full", "lora"}), optimizers=frozenset({Reads.ELEMENTS}), roles=2,
        provides=frozenset({Need.TOKEN_LOGPS, Need.TOKEN_CORRECT}),
    )  # fmt: skip
    monkeypatch.setattr(DataParallelBackend, "capabilities", able)
    settings = {"model": ModelSection(path="nothing here"), **role}
    with (
        pytest.raises(SwiftError, match=lacking),
        opened(tiny, tmp_path, [ModelRole("critic", **settings)], **{"tuner.kind": "full"}),
    ):
        pass


def test_adapter_role_has_own_options_and_lr(tiny: Path, tmp_path: Path) -> None:
    """A role with adapters has options and a learning rate of its own."""
    tuner = TunerSection(kind="lora", rank=2, lora_plus_ratio=3.0)
    critic = ModelRole("critic", ModelSection(path=str(tiny)), tuner=tuner, optim=OptimSection(warmup_ratio=0.0))
    with opened(tiny, tmp_path, [critic], **{"tuner.kind": "full"}) as job:
        role = job.roles["critic"]
        result = role.train_step(job.batch_schedule.batch(0, 0, 1), job.objective)
        assert (job.run.facts.adapter, role.run.facts.adapter["r"]) == (None, 2)
        assert result.learning_rate == pytest.approx(1e-4)
        assert sorted({group["lr"] for group in role.state.optimizer.param_groups}) == pytest.approx([1e-4, 3e-4])
        trained = {name: tensor.clone() for name, tensor in role.iter_weights()}
        assert {tensor.shape[0] for name, tensor in trained.items() if "lora_A" in name} == {2}
        Loop(job).run()
    folder = tmp_path / tiny.name / "run" / "checkpoint-2"
    assert open_checkpoint(folder).facts.roles["critic"].adapter["r"] == 2
    with opened(tiny, tmp_path, [critic], **{"tuner.kind": "full", "checkpoint.resume": str(folder)}) as job:
        resumed = dict(job.roles["critic"].iter_weights())
        assert resumed.keys() == trained.keys()
        assert all(torch.equal(resumed[name], trained[name]) for name in trained)


@pytest.mark.parametrize("name", ["policy", "Critic", "a/b", ""])
def test_the_name_of_a_role_is_fit_for_names_in_checkpoints(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a role"):
        ModelRole(name, ModelSection())


def test_a_role_is_saved_resumed_and_missed(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    critic = ModelRole("critic", ModelSection(path=str(tiny)), schedule=lambda step: 0.01)
    with opened(tiny, tmp_path, [critic]) as job:
        role = job.roles["critic"]
        assert role.train_step(job.batch_schedule.batch(0, 0, 1), job.objective).learning_rate == 0.01
        Loop(job).run()
        trained = {name: tensor.clone() for name, tensor in role.iter_weights()}
    folder = tmp_path / tiny.name / "run" / "checkpoint-2"
    assert open_checkpoint(folder).facts.roles["critic"].step == 1
    with opened(tiny, tmp_path, [critic], **{"checkpoint.resume": str(folder)}) as job:
        role = job.roles["critic"]
        assert role.state.step == 1
        assert all(torch.equal(tensor, trained[name]) for name, tensor in role.iter_weights())
    capsys.readouterr()
    with opened(tiny, tmp_path, **{"checkpoint.resume": str(folder)}):
        assert "also holds critic, which this run does not have: left out" in capsys.readouterr().out
    other = replace(critic, name="teacher")
    with (
        pytest.raises(CheckpointError, match=r"has no teacher: .*other roles \(critic\)"),
        opened(tiny, tmp_path, [other], **{"checkpoint.resume": str(folder)}),
    ):
        pass


def test_frozen_role_is_evaluated_and_not_saved(tiny: Path, tmp_path: Path) -> None:
    teacher = ModelRole("teacher", ModelSection(path=str(tiny)), trained=False)
    with opened(tiny, tmp_path, [teacher]) as job:
        batch, score, role = job.batch_schedule.batch(0, 0, 1), SegmentScore(adapters_off=False), job.roles["teacher"]
        before = job.hooks.swift_forward(job.run, job.state, batch, score).segments
        Loop(job).run()
        assert torch.equal(role.forward(batch, score).segments, before)
        assert not torch.equal(job.hooks.swift_forward(job.run, job.state, batch, score).segments, before)
        with pytest.raises(ValueError, match="teacher is not trained"):
            role.train_step(batch, job.objective)
    assert open_checkpoint(tmp_path / tiny.name / "run" / "checkpoint-2").facts.roles == {}

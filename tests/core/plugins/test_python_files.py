"""Objectives in Python files, without a distribution: `--objective FILE.py:NAME`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_runs import conversations, run_training, write_model

from swift.cli.main import run
from swift.errors import ConfigError, PluginError
from swift.export.objective import add_files_of_objective
from swift.parsing import parse
from swift.plugins.load import find

FOCAL = """
from typing import Annotated

from pydantic import NonNegativeFloat

from swift import LossSums, Section
from swift.config.options import Aliases
from swift.objectives.base import BaseObjective


class FocalOptions(Section):
    sharpness: Annotated[NonNegativeFloat, Aliases("focus", "learning_rate")] = 2.0


class Focal(BaseObjective):
    name = "focal"
    options_model = FocalOptions

    def row_weight(self, samples):
        return sum(sample.loss_weight for sample in samples)

    def loss(self, view, batch):
        logps = view.token_logps
        losses = -((1 - logps.exp()) ** self.options.sharpness) * logps
        return LossSums(loss=(losses * batch.weights).sum())

    def finish_export(self, context):
        (context.folder / "focal.txt").write_text(str(self.options.sharpness))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an objective in a file; what is imported of it is forgotten."""
    (tmp_path / "focal_loss.py").write_text(FOCAL)
    monkeypatch.chdir(tmp_path)
    path, modules = [*sys.path], {*sys.modules}
    yield tmp_path
    sys.path[:] = path
    for name in sys.modules.keys() - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_objective_in_a_file_trains_with_its_options(folder: Path) -> None:
    """Without focusing it is supervised fine-tuning, bit for bit; with it the loss is smaller."""
    write_model(folder / "model")
    rows = conversations(8)
    losses = {}
    for gamma in (None, 0.0, 2.0):
        own = {} if gamma is None else {"objective.name": "focal_loss.py:Focal", "objective.sharpness": gamma}
        done = run_training(folder / "model", folder / f"runs-{gamma}", rows, {"train.max_steps": 2, **own})
        losses[gamma] = done.losses
    assert losses[0.0] == losses[None]
    assert losses[2.0][0] < losses[None][0]


def test_objective_in_a_file_is_named_by_its_whole_path(folder: Path) -> None:
    """The configuration means the same in every folder."""
    parsed = parse(["--objective", "focal_loss.py:Focal", "--objective.sharpness", "1"], "train", complete=False)
    assert parsed.config.objective.name == f"{folder}/focal_loss.py:Focal"
    assert parsed.objective.options.sharpness == 1.0


@pytest.mark.parametrize("flags", [["--focus", "1"], ["--focus=1"], ["--objective.sharpness", "1"]])
@pytest.mark.parametrize("first", [True, False])
def test_options_of_plugins_have_aliases(folder: Path, flags: list[str], first: bool) -> None:
    """They are found wherever the plugin is named, and take no flag from core."""
    named = ["--objective", "focal_loss.py:Focal"]
    parsed = parse([*flags, *named] if first else [*named, *flags], "train", complete=False)
    assert parsed.objective.options.sharpness == 1.0
    parsed = parse([*named, *flags, "--learning_rate", "3"], "train", complete=False)
    assert (parsed.config.learning_rate, parsed.objective.options.sharpness) == (3.0, 1.0)
    with pytest.raises(ConfigError, match="Unknown flag --focus"):
        parse(["--focus", "1"], "train", complete=False)


def test_help_shows_aliases_of_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--objective", "focal_loss.py:Focal", "--help", "all"]) == 0
    assert "--focus" in capsys.readouterr().out


def test_configuration_file_cannot_name_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration file runs no Python file, unless a flag names it too."""
    (folder / "run.yaml").write_text("objective: {name: 'focal_loss.py:Focal'}\n")
    (folder / "focal_loss.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n{FOCAL}")
    with pytest.raises(ConfigError, match=r"which would run focal_loss\.py:Focal") as caught:
        parse(["run.yaml"], "train", complete=False)
    assert caught.value.hint is not None
    assert "--objective focal_loss.py:Focal" in caught.value.hint
    assert not (folder / "ran").exists()
    parse(["run.yaml", "--objective", "focal_loss.py:Focal"], "train", complete=False)
    assert (folder / "ran").exists()


def test_checkpoint_cannot_name_code(folder: Path) -> None:
    """The export of a checkpoint imports no file that it names, and says what is missing."""
    said: list[str] = []
    stored = {"name": f"{folder}/focal_loss.py:Focal", "sharpness": 1.0}
    add_files_of_objective(folder, stored, model=None, say=said.append)
    assert "focal_loss" not in sys.modules
    assert "is not run for an export" in said[0]
    parse(["--objective", "focal_loss.py:Focal"], "train", complete=False)
    add_files_of_objective(folder, stored, model=None, say=said.append)
    assert (folder / "focal.txt").read_text() == "1.0"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("focal_loss.py", "names no class"),
        ("missing.py:Focal", "There is no file"),
        ("focal_loss.py:Vocal", "could not be imported"),
        ("broken.py:Focal", "the cable fell out"),
    ],
)
def test_unusable_file_is_one_message(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    (folder / "broken.py").write_text("raise RuntimeError('the cable fell out')")
    assert run(["train", "--model", "m", "--dataset", "d.jsonl", "--objective", name]) in (2, 3)
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert os.fspath(Path(name.partition(":")[0]).name) in printed


@pytest.mark.parametrize("file", ["two words.py", "json.py"])
def test_file_may_have_any_name(folder: Path, file: str) -> None:
    """A file replaces no module of the same name, and need not be a module's."""
    (folder / file).write_text(FOCAL)
    parsed = parse(["--objective", f"{file}:Focal", "--objective.sharpness", "1"], "train", complete=False)
    assert parsed.objective.options.sharpness == 1.0
    assert sys.modules["json"] is json


def test_only_objectives_may_be_in_a_file(folder: Path) -> None:
    with pytest.raises(PluginError, match="There is no optimizer"):
        find("swift.optimizers", "focal_loss.py:Focal")

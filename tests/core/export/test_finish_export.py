"""An objective that adds files to the exports of its models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_runs import conversations, run_training

from swift.errors import PluginError
from swift.export.objective import add_files_of_objective

GREETING = """
from swift import LossSums, Section
from swift.objectives.base import PerSampleObjective


class Options(Section):
    greeting: str = "Hi"


class Greeting(PerSampleObjective):
    name = "greeting"
    options_model = Options

    def loss(self, view, batch):
        loss = -(view.token_logps * batch.weights).sum()
        return LossSums(loss)

    def finish_export(self, context):
        if self.options.greeting == "bad":
            raise RuntimeError("no such greeting")
        text = f"{self.options.greeting} {context.system} {context.has_model}"
        (context.folder / "greeting.txt").write_text(text)
"""


@pytest.fixture
def greeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The objective `greeting` of a third party, installed for one test."""
    info = tmp_path / "site" / "greeting_objective-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting-objective\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[swift.objectives]\ngreeting = greeting_objective:Greeting\n")
    (info.parent / "greeting_objective.py").write_text(GREETING)
    with monkeypatch.context() as patches:
        patches.syspath_prepend(str(info.parent))
        yield


def exported(folder: Path, objective: dict[str, str], system: str | None = None) -> list[str]:
    said: list[str] = []
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    add_files_of_objective(folder, objective, model=None, system=system, say=said.append)
    return said


def test_third_party_objective_adds_its_files(greeting: None, tmp_path: Path) -> None:
    """It is made with the options of the run, without those that its installed version does not know."""
    run = {"name": "greeting", "greeting": "Hello", "of_an_earlier_version": "1"}
    assert exported(tmp_path / "export", run, "Be brief.") == []
    assert (tmp_path / "export" / "greeting.txt").read_text() == "Hello Be brief. True"


def test_failing_finish_export_names_the_plugin(greeting: None, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"objective 'greeting' \(greeting-objective 1\.0\).*finish_export"):
        exported(tmp_path / "export", {"name": "greeting", "greeting": "bad"})


def test_missing_objective_is_noted_in_exports(without_objectives: None, tmp_path: Path) -> None:
    """A checkpoint is exported on a machine without the objective; the user learns which files are missing."""
    (note,) = exported(tmp_path / "export", {"name": "reranker"})
    assert "objective 'reranker' is not installed" in note
    assert 'core[objectives]"' in note


def test_objectives_without_files_change_nothing(tmp_path: Path) -> None:
    assert exported(tmp_path / "export", {"name": "dpo"}) == []
    assert [file.name for file in (tmp_path / "export").iterdir()] == ["config.json"]


def test_export_after_training_has_system_message(greeting: None, tiny: Path, tmp_path: Path) -> None:
    """The objective learns of `data.system` at the end of a run as by `swift export`."""
    settings = {"objective.name": "greeting", "export.to": "hf", "data.system": "Be brief.", "train.max_steps": 1}
    run = run_training(tiny, tmp_path / "output", conversations(4), settings)
    assert (run.folder / "export-hf" / "greeting.txt").read_text() == "Hi Be brief. True"

"""Errors of plugins: which plugin is named, where its traceback is, and what continues without it."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import on_processes, succeeded
from tiny_runs import conversations, run_training

from swift.cli.main import run
from swift.errors import PluginError, TrainingError
from swift.hookspecs import hookimpl
from swift.parsing import parse
from swift.plugins.hooks import core_settings, describe_plan, implements, presets, read_third_party, write_third_party
from swift.plugins.known import PACKAGES
from swift.plugins.load import load_backend, load_observers

SOURCE = '''
import time

import swift.backends.torch.plugin as built_in
from swift import hookimpl


class FailsLater(built_in.DataParallelBackend):
    @hookimpl
    def swift_train_step(self, run, state, batch, objective):
        if batch.step == 2:
            raise RuntimeError("the cable fell out")
        from swift.backends.torch.step import train_step

        return train_step(run, state, batch, objective)


class FailsAtTheEndToo(FailsLater):
    @hookimpl
    def swift_teardown(self, run):
        super().swift_teardown(run)
        raise ValueError("the door is stuck")


class WithHooks(built_in.DataParallelBackend):
    @hookimpl
    def swift_core_settings(self, options):
        return {"train.max_steps": (7, "the card")}

    @hookimpl
    def swift_describe_layout(self, config, processes):
        return [f"{processes} hold everything"]

    @hookimpl
    def swift_presets(self):
        return {"small": "speed: 1"}

    @hookimpl
    def swift_read_third_party(self, folder):
        if not (folder / "card").exists():
            return None
        return Foreign()

    @hookimpl
    def swift_write_third_party(self, state, folder):
        (folder / "card").write_text(state)


class Foreign:
    description, step, rows_per_step = "a card", 3, 0

    def names(self):
        return ["a"]

    def read(self, name):
        raise RuntimeError("the card is scratched")


class Restless:
    """Fails on the second process alone."""

    @hookimpl(wrapper=True)
    def swift_train_step(self, run, batch):
        with (run.folder.parent / f"seen-{run.world.rank}").open("a") as file:
            file.write(f"{batch.step}\\n")
        result = yield
        if run.world.rank == 1 and batch.step == 1:
            raise RuntimeError("one process has enough")
        return result
'''
SLOW = """
import time

from swift import hookimpl

time.sleep(0.3)


class Slow:
    @hookimpl
    def swift_run_start(self):
        pass
"""


@pytest.fixture
def rough(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with all of these plugins."""
    site = tmp_path_factory.mktemp("rough")
    (site / "rough.py").write_text(SOURCE)
    (site / "rough_slow.py").write_text(SLOW)
    info = site / "rough-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rough\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[swift.backends]\nlater = rough:FailsLater\ntwice = rough:FailsAtTheEndToo\n"
        "hooks = rough:WithHooks\n"
        "[swift.observers]\nrestless = rough:Restless\nslow = rough_slow:Slow\n"
    )
    monkeypatch.syspath_prepend(str(site))
    yield
    for module in ("rough", "rough_slow"):
        sys.modules.pop(module, None)


@pytest.mark.usefixtures("rough")
def test_failed_step_names_rank_step_plugin_and_checkpoint(tiny: Path, tmp_path: Path) -> None:
    changes = {"backend.name": "later", "checkpoint.save_steps": 1, "train.max_steps": 4}
    with pytest.raises(TrainingError) as caught:
        run_training(tiny, tmp_path, conversations(16), changes)
    folder = tmp_path / tiny.name / "run"
    message = str(caught.value)
    assert "Process 0 failed in step 3: RuntimeError: the cable fell out." in message
    assert "It was raised by the backend 'later' (rough 1.0) in swift_train_step." in message
    assert f"--resume_from_checkpoint {folder / 'checkpoint-2'}" in message
    assert f"The traceback is in {folder / 'traceback-0.txt'}." in message
    assert 'raise RuntimeError("the cable fell out")' in (folder / "traceback-0.txt").read_text()
    assert isinstance(caught.value.__cause__, RuntimeError)
    last = json.loads((folder / "logging.jsonl").read_text().splitlines()[-1])
    assert last["status"] == "failed"
    assert "the cable fell out" in last["message"]


@pytest.mark.usefixtures("rough")
def test_error_at_end_does_not_hide_run_error(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrainingError, match="the cable fell out"):
        run_training(tiny, tmp_path, conversations(16), {"backend.name": "twice"})
    said = capsys.readouterr().out
    assert "backend 'twice' (rough 1.0) failed in swift_teardown: ValueError: the door is stuck." in said


@pytest.mark.full
def test_errors_of_this_project_are_internal_errors(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint names neither other authors nor an upgrade."""

    def broken(*_: object) -> None:
        raise AttributeError("no such attribute")

    monkeypatch.setattr(
        "swift.backends.torch.plugin.DataParallelBackend.swift_wrap_model", hookimpl(lambda self, run, source: broken())
    )
    with pytest.raises(PluginError, match="failed in swift_wrap_model: AttributeError: no such attribute") as caught:
        run_training(tiny, tmp_path, conversations(4))
    assert "This is an internal error of swift: report it to its developers" in str(caught.value)
    assert "pip install" not in str(caught.value)
    assert "the authors of" not in str(caught.value)


def test_distributions_of_this_project_are_known() -> None:
    files = (Path(__file__).parents[3] / "packages").glob("*/pyproject.toml")
    assert {tomllib.loads(file.read_text())["project"]["name"] for file in files} == PACKAGES


@pytest.mark.usefixtures("rough")
def test_observer_failing_on_one_rank_is_disabled_on_all(tiny: Path, tmp_path: Path) -> None:
    def job() -> Any:
        changes = {"logging.report_to": ["jsonl", "restless"], "train.max_steps": 4}
        return run_training(tiny, tmp_path, conversations(32), changes).summary.status

    ((first, second),) = on_processes(2, job)
    assert succeeded([first, second]) == ["completed", "completed"]
    seen = [(tmp_path / tiny.name / f"seen-{rank}").read_text().split() for rank in range(2)]
    assert seen == [["0", "1"], ["0", "1"]]


@pytest.mark.usefixtures("rough")
def test_slow_import_names_plugin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("swift.plugins.load.PATIENCE", 0.01)
    load_observers(["slow"])
    assert capsys.readouterr().err == "Still importing observer 'slow' (rough 1.0). Ctrl-C ends the command.\n"


@pytest.mark.usefixtures("rough")
def test_quick_import_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    load_backend("hooks")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("rough")
def test_hooks_outside_of_runs_reach_the_backend(tmp_path: Path) -> None:
    backend = load_backend("hooks")
    parsed = parse(["--backend", "hooks", "--model", "m", "--dataset", "d"], "sft")
    assert parsed.config.train.max_steps == 7
    assert core_settings(backend, parsed.backend_options) == {"train.max_steps": (7, "the card")}
    assert describe_plan(backend, parsed.config, 4) == ["4 hold everything"]
    assert presets(backend) == {"small": "speed: 1"}
    assert read_third_party(backend, tmp_path) is None
    state: Any = "written"
    write_third_party(backend, state, tmp_path)
    assert (tmp_path / "card").read_text() == "written"
    found = read_third_party(backend, tmp_path)
    assert found is not None
    assert (found.description, list(found.names())) == ("a card", ["a"])
    with pytest.raises(PluginError, match=r"'hooks' \(rough 1\.0\) failed in read of .*: the card is scratched"):
        found.read("a")


def test_backend_without_optional_hooks_works(tmp_path: Path) -> None:
    backend = load_backend("torch")
    assert not implements(backend, "swift_read_third_party")
    assert read_third_party(backend, tmp_path) is None
    assert presets(backend) == {}


@pytest.mark.usefixtures("rough")
def test_third_party_preset_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "hooks", "small"]) == 0
    assert capsys.readouterr().out == "speed: 1"

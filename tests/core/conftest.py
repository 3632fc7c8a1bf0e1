"""Models that many tests share, an observer of a third party, and this project's own packages out of sight."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest

from swift.plugins import discover as plugins

RECORDER = '''
"""Notes which samples each step took on each process."""

import json

from swift import hookimpl


class Recorder:
    @hookimpl(wrapper=True)
    def swift_train_step(self, run, batch):
        result = yield
        samples = [sample.sample_id for row in batch.rows for sample in row]
        with (run.folder / f"samples-{run.world.rank}.jsonl").open("a") as file:
            file.write(json.dumps([batch.step, samples]) + "\\n")
        return result
'''


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a head of its own."""
    from tiny_runs import write_model  # imports torch, which most tests of this folder do without

    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose head is its embedding."""
    from tiny_runs import write_model

    return write_model(tmp_path_factory.mktemp("models") / "tied", tie_word_embeddings=True)


@pytest.fixture
def without_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    """swift-backend-megatron as if it were not installed, in this process."""
    _hide("swift-backend-megatron", monkeypatch)


@pytest.fixture
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """swift-export-vllm as if it were not installed, in this process."""
    _hide("swift-export-vllm", monkeypatch)


@pytest.fixture
def without_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide("swift-trackers", monkeypatch)


@pytest.fixture
def without_objectives(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide("swift-objectives", monkeypatch)


@pytest.fixture
def without_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide("swift-tuning", monkeypatch)


@pytest.fixture
def without_infer(monkeypatch: pytest.MonkeyPatch) -> None:
    """swift-infer as if it were not installed, in this process."""
    _hide("swift-infer", monkeypatch)


@pytest.fixture
def without_rl(monkeypatch: pytest.MonkeyPatch) -> None:
    """swift-rl as if it were not installed, in this process."""
    _hide("swift-rl", monkeypatch)


@pytest.fixture
def without_migrate(monkeypatch: pytest.MonkeyPatch) -> None:
    """swift-migrate as if it were not installed, in this process."""
    _hide("swift-migrate", monkeypatch)


def _hide(distribution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    discover = Distribution.discover

    def others(**wanted: Any) -> Iterable[Distribution]:
        return (found for found in discover(**wanted) if _name_of(found) != distribution)

    monkeypatch.setattr(Distribution, "discover", others)
    for reading in ("_listed", "_installed"):  # and not from what was read before
        monkeypatch.setattr(plugins, reading, inspect.unwrap(getattr(plugins, reading)))
    assert distribution not in {_name_of(found) for found in Distribution.discover()}


def _name_of(distribution: Distribution) -> str:
    """Tell it by its folder, whose metadata is long to read."""
    return Path(str(getattr(distribution, "_path", ""))).name.rpartition(".")[0].partition("-")[0].replace("_", "-")


@pytest.fixture(scope="session")
def recorder_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a distribution with the observer `recorder` is installed."""
    site = tmp_path_factory.mktemp("recorder")
    (site / "noting_recorder.py").write_text(RECORDER)
    info = site / "noting_recorder-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: noting-recorder\nVersion: 1.0\nRequires-Dist: swift-core>=0.1\n"
    )
    (info / "entry_points.txt").write_text("[swift.observers]\nrecorder = noting_recorder:Recorder\n")
    return site


@pytest.fixture
def recorder(recorder_site: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Installs the recorder; the value is for `logging.report_to`."""
    monkeypatch.syspath_prepend(str(recorder_site))
    return ["jsonl", "recorder"]

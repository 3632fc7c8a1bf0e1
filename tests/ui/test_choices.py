"""Models and data sets that the page offers, compared with what lies on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders import write_run
from starlette.testclient import TestClient

from swift_ui.looking import choices
from swift_ui.options import UiSettings


def write_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()


def offered(page: TestClient) -> dict[str, dict[str, list[str]]]:
    """Return kind → group → values."""
    found: dict[str, dict[str, list[str]]] = {}
    for kind, each in page.get("/api/choices").json().items():
        for choice in each:
            found.setdefault(kind, {}).setdefault(choice["group"], []).append(choice["value"])
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def test_runs_offer_checkpoints_exports_and_inputs(page: TestClient, settings: UiSettings, here: Path) -> None:
    settings_of_run = {"model.path": "/models/base", "data.train": ["a.jsonl", "org/set"], "data.validation": []}
    run = write_run(settings.roots[0] / "m" / "v0", settings=settings_of_run)
    for step in (1, 2, 3, 10):
        write_model(run / f"checkpoint-{step}")
    write_model(run / "merged")
    (run / "runs").mkdir()
    (run / "last-checkpoint").symlink_to("checkpoint-10")
    assert offered(page) == {
        "models": {
            "Checkpoints": [str(run / f"checkpoint-{step}") for step in (10, 3, 2)],
            "Exports": [str(run / "merged")],
            "Used by runs": ["/models/base"],
        },
        "datasets": {"Used by runs": ["a.jsonl", "org/set"]},
    }


def test_working_directory_offers_models_and_files(page: TestClient, settings: UiSettings, here: Path) -> None:
    write_model(here / "base")
    write_model(here / "base" / "inside")
    write_model(here / ".hidden" / "model")
    write_model(here / "a" / "b" / "c" / "too-deep")
    write_model(settings.roots[0] / "exported")
    (here / "adapter").mkdir()
    (here / "adapter" / "adapter_config.json").write_text("{}")
    (here / "data").mkdir()
    for name in ("data/train.jsonl", "test.parquet", "notes.md", "base/tokenizer.json"):
        (here / name).touch()
    models = ["adapter", "base", str(settings.roots[0] / "exported")]
    assert offered(page) == {"models": {"Folders": models}, "datasets": {"Files": ["test.parquet", "data/train.jsonl"]}}


def test_hub_cache_and_short_names_are_offered(
    page: TestClient, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("models--org--one", "datasets--org--rows"):
        (tmp_path / "hub" / name).mkdir(parents=True)
    assert offered(page) == {"models": {"Hub cache": ["org/one"]}, "datasets": {"Hub cache": ["org/rows"]}}
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert "qwen3-0.6b" in offered(page)["models"]["Hub"]


def test_search_of_a_large_directory_ends(page: TestClient, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "MOST_FOLDERS", 3)
    for name in "abcdef":
        write_model(here / name)
    assert offered(page)["models"] == {"Folders": ["a", "b"]}

"""The folder in which every case of malformed input begins."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and a good data set; cases get copies."""
    from swift.testing.subjects import conversations, write_jsonl, write_model  # imports torch

    folder = tmp_path_factory.mktemp("template")
    write_model(folder / "model")
    write_jsonl(folder / "data.jsonl", conversations(8))
    return folder


@pytest.fixture
def tracebacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files with tracebacks go that belong to no run."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path

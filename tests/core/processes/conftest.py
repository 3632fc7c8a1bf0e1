"""A folder with a tiny model and a data set, as a user would have it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_runs import conversations, write_jsonl

    return write_jsonl(tmp_path_factory.mktemp("data") / "data.jsonl", conversations(64))


@pytest.fixture
def place(tmp_path: Path, tiny: Path, data: Path) -> Path:
    """The folder in which a command is typed."""
    (tmp_path / "tiny").symlink_to(tiny)
    (tmp_path / "data.jsonl").symlink_to(data)
    return tmp_path

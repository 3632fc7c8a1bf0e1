"""Models that many tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import write_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a head of its own."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose head is its embedding."""
    return write_model(tmp_path_factory.mktemp("models") / "tied", tie_word_embeddings=True)

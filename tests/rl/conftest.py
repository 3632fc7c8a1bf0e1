"""A tiny model, prompts and a reward for runs of online learning."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import write_model


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 whose head is its embedding, with a chat template."""
    return write_model(tmp_path_factory.mktemp("model") / "tiny", tie_word_embeddings=True)


@pytest.fixture(scope="session")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with rewards that anyone can compute again from the tokens of a completion."""
    file = tmp_path_factory.mktemp("rewards") / "rewards.py"
    file.write_text(
        "def evens(completion_ids, **columns):\n"
        "    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]\n"
        "def longer(completion_ids, bonus, **columns):\n"
        "    return [more * len(ids) for more, ids in zip(bonus, completion_ids)]\n"
        "def first(completion_ids, **columns):\n"
        "    return [float(ids[0] % 2 == 0) for ids in completion_ids]\n"
    )
    return file

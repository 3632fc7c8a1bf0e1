"""Runs of online learning: their pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_audit import data_of
from test_rounds import ROWS, settings
from tiny_runs import run_training


@pytest.mark.full
def test_round_pages_name_step_of_each_completion(tied: Path, rewards: Path, tmp_path: Path) -> None:
    """Rounds have pages that say which step learned from a completion."""
    changes = {
        "train.max_steps": 4, "objective.steps_per_generation": 2,
        "train.global_batch": 4,
    }  # fmt: skip
    run = run_training(tied, tmp_path, ROWS, settings(rewards, **changes))
    pages = sorted((run.folder / "rollouts").glob("*.html"))
    assert [page.name for page in pages] == ["round-000000.html", "round-000001.html"]
    groups = json.loads(data_of(pages[1].read_text()))["groups"]
    steps = [completion["steps"] for group in groups for completion in group["completions"]]
    assert sorted(steps) == [[3]] * 4 + [[4]] * 4
    first = groups[0]["completions"][0]
    assert len(first["pieces"]) == len(first["ids"])
    assert "".join(first["pieces"]).startswith(first["text"][:1])
    assert first["values"]["log-ratio to the engine"] == pytest.approx([0.0] * len(first["ids"]), abs=1e-4)

"""`swift demo --task grpo`: from few good completions to many, on the screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import typed

from swift_demo import online_demo


@pytest.mark.full
def test_the_demo_shows_how_a_reward_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the demo's steps, and the better part of what it reaches."""
    monkeypatch.setattr(online_demo, "EXAMPLE_STEPS", 120)
    monkeypatch.setattr(online_demo, "REWARD_STEPS", 12)
    monkeypatch.setattr(online_demo, "GOAL", 0.65)
    ended = typed(["demo", "--task", "grpo", "--out", str(tmp_path / "demo")], tmp_path)
    assert ended.code == 0, ended.output
    (said,) = re.findall(r"Reward on held-out prompts: ([\d.]+) before, ([\d.]+) after", ended.output)
    assert 0.2 < float(said[0]) < 0.4
    assert float(said[1]) >= 0.65
    page = re.findall(r"All completions with their rewards: (\S+)", ended.output)[0]
    assert "aloud" in (tmp_path / page).read_text(encoding="utf-8")

"""`swift demo --task grpo`: from chance to what is rewarded, on the screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import typed


@pytest.mark.full
def test_the_demo_shows_how_a_reward_is_learned(tmp_path: Path) -> None:
    ended = typed(["demo", "--task", "grpo", "--out", str(tmp_path / "demo")], tmp_path)
    assert ended.code == 0, ended.output
    (said,) = re.findall(r"Reward on held-out prompts: ([\d.]+) before, ([\d.]+) after", ended.output)
    assert float(said[0]) < 0.15
    assert float(said[1]) >= 0.9
    page = re.findall(r"Every answer with its reward: (\S+)", ended.output)[0]
    assert "Say" in Path(page).read_text(encoding="utf-8")

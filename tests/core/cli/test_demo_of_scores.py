"""`swift demo --task ...`: the task that is learned soonest, as a person types it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import typed


@pytest.mark.full
def test_a_tiny_classifier_is_shown_before_it_has_learned_and_after(tmp_path: Path) -> None:
    ended = typed(["demo", "--task", "seq_cls", "--out", "demo"], tmp_path)
    assert ended.code == 0, ended.output
    before = re.search(r"eval_accuracy (0\.\d+)", ended.output)
    assert before is not None
    assert float(before[1]) < 0.3
    after = re.search(r"accuracy on held-out rows: (\d\.\d+)", ended.output)
    assert after is not None
    assert float(after[1]) >= 0.95

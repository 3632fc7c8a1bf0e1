"""Images and messages of `swift demo --task vision`; a test of the tutorial shows that the model learns."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from commands import typed

from swift_demo import vision_demo
from swift_demo.images import CELL, render_number, shuffled, write_image_rows


def test_demo_digits_vary_and_stay_in_bounds() -> None:
    seen = {}
    for digit in range(10):
        pixels = np.asarray(render_number(digit, random.Random(0)).convert("L")).astype(int)
        assert pixels.shape == (CELL, CELL)
        ink = pixels < 128
        assert not ink[[0, -1]].any()
        assert not ink[:, [0, -1]].any()
        seen[digit] = ink.tobytes()
    assert len(set(seen.values())) == 10


def test_demo_image_splits_do_not_leak(tmp_path: Path) -> None:
    """No held-out number is learned and no shuffled question has its own image."""
    learned, asked = write_image_rows(tmp_path / "images", variants=1)
    numbers = [{Path(row["images"][0]).stem.partition("-")[0] for row in rows} for rows in (learned, asked)]
    assert not numbers[0] & numbers[1]
    assert (len(numbers[0]), len(numbers[1])) == (800, 100)
    for row, other in zip(asked, shuffled(asked), strict=True):
        assert row["messages"] == other["messages"]
        assert row["images"] != other["images"]
    assert sorted(row["images"] for row in shuffled(asked)) == sorted(row["images"] for row in asked)


@pytest.mark.full
def test_untrained_vision_model_fails_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision_demo, "STEPS", 2)
    monkeypatch.setattr(vision_demo, "DRAWINGS", 1)
    ended = typed(["demo", "--task", "vision", "--out", "demo"], tmp_path)
    assert ended.code == 1, ended.output
    assert "Verified by transformers" in ended.output
    assert "with images shuffled: 0%" in ended.output
    assert "The demo failed: it should reach 95%" in ended.output

"""The image of a run in the README."""

from __future__ import annotations

import html
import re

from pages import DOCS

IMAGE = DOCS / "images" / "run.svg"


def test_screenshot_shows_losses_and_loads_nothing() -> None:
    """The image shows a run with its losses and fetches nothing."""
    image = IMAGE.read_text(encoding="utf-8")
    assert not re.search(r"url\((?!#)|href|@import|@font-face|<script", image)
    lines = html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", image))).replace("\xa0", " ")
    for text in ("swift sft --model tiny", "Objective", "Learning rate", "held out", "evaluation at step 30", "saved"):
        assert text in lines
    assert len(re.findall(r"step \d+/60  loss [\d.]+", lines)) >= 6
    assert "/tmp" not in lines
    assert "](docs/images/run.svg)" in (DOCS.parent / "README.md").read_text(encoding="utf-8")

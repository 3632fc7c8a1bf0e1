"""The picture of a run in the README."""

from __future__ import annotations

import html
import re

from pages import DOCS

PICTURE = DOCS / "pictures" / "run.svg"


def test_screenshot_shows_losses_and_loads_nothing() -> None:
    """The image shows a run with its losses and fetches nothing."""
    picture = PICTURE.read_text(encoding="utf-8")
    assert not re.search(r"url\((?!#)|href|@import|@font-face|<script", picture)
    lines = html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", picture))).replace("\xa0", " ")
    for text in ("swift sft --model tiny", "Objective", "Learning rate", "held out", "evaluation at step 30", "saved"):
        assert text in lines
    assert len(re.findall(r"step \d+/60  loss [\d.]+", lines)) >= 6
    assert "/tmp" not in lines
    assert "](docs/pictures/run.svg)" in (DOCS.parent / "README.md").read_text(encoding="utf-8")

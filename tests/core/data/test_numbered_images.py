"""What an image becomes may depend on the images before it in a text, as in MiniCPM-V, which numbers them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from swift.data.media import MediaRef
from swift.data.media_tokens import MediaTokens
from swift.errors import ModelError


class Rules:
    """A processor that writes the number of each image, and something else of files if their pixels matter to it."""

    def __init__(self, pixels: str = "") -> None:
        self.placeholders = {"image": "<image>"}
        self.decoded = 0
        self._pixels = pixels

    def replacement(self, each: MediaRef) -> str:
        return self.of_blank([each])[0]

    def replacements(self, seen: Sequence[MediaRef]) -> list[str]:
        self.decoded += 1
        return [f"{text}{self._pixels}" for text in self.of_blank(seen)]

    def of_blank(self, seen: Sequence[MediaRef]) -> list[str]:
        return [f"{number}: {each.width} " for number, each in enumerate(seen)]


def expanded(rules: Any, folder: Path, texts: Sequence[Sequence[int]]) -> list[list[str]]:
    tokens = MediaTokens(rules, folder)
    return [tokens._replacements([MediaRef("image", "x.png", 0, 0, width, 5) for width in text]) for text in texts]


def test_images_of_a_text_are_numbered(tmp_path: Path) -> None:
    """Also where many texts with one image come first, after which files are decoded no more."""
    rules = Rules()
    found = expanded(rules, tmp_path, [[5], [6], [7], [8], [5, 6], [6, 5, 5], [9]])
    assert found == [
        ["0: 5 "], ["0: 6 "], ["0: 7 "], ["0: 8 "], ["0: 5 ", "1: 6 "], ["0: 6 ", "1: 5 ", "2: 5 "], ["0: 9 "]
    ]  # fmt: skip
    assert rules.decoded == 3


@pytest.mark.parametrize("text", [[5], [5, 6]])
def test_processor_that_reads_pixels_is_refused(text: list[int], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"characters of x\.png"):
        expanded(Rules("!"), tmp_path, [text])

"""The examples of a third party are short, and the pages that build them show their files."""

from __future__ import annotations

import import_rules
import pytest

ROOT = import_rules.ROOT
EXAMPLES = {
    "third-party-optimizer": (60, ROOT / "docs" / "how-to" / "write-an-optimizer.md"),
    "third-party-tuner": (80, ROOT / "docs" / "how-to" / "write-a-tuner.md"),
    "third-party-environment": (80, ROOT / "docs" / "tutorial" / "guessing-game.md"),
}
"""Folder → how many lines it may have, and the page that builds it."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_page_builds_the_example_from_few_lines(example: str) -> None:
    most, page = EXAMPLES[example]
    files = [*(ROOT / "examples" / example).glob("*.py"), ROOT / "examples" / example / "pyproject.toml"]
    for file in files:
        assert f"{file.name}\n{file.read_text()}```" in page.read_text()
    assert 0 < sum(len(file.read_text().splitlines()) for file in files if file.suffix == ".py") <= most

"""The Chinese pages are in step with the English ones: neither changes alone.

Headings, tables, blocks of code, words in code font and links must be the same; sentences are not compared.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from pages import CHINESE, ROOT

PAGES = {
    "README.md": ROOT / "README.zh.md",
    **{f"docs/{page.relative_to(CHINESE).as_posix()}": page for page in sorted(CHINESE.rglob("*.md"))},
}
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
_WORD = re.compile(r"`([^`]+)`")


def code(page: Path) -> list[str]:
    """Return the blocks of code and of output."""
    return _CODE.findall(page.read_text(encoding="utf-8"))


def headings(page: Path) -> list[str]:
    """Return the levels of the headings, with their numbers."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    return re.findall(r"^#+ (?:\d+\. )?", text, re.MULTILINE)


def tables(page: Path) -> list[int]:
    """Return the columns of each row of the tables."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    return [line.count("|") for line in text.splitlines() if line.startswith("|")]


def links(page: Path) -> set[Path]:
    """Return the files that a page links to; those that are translated by the English page."""
    found = {
        Path(os.path.normpath(page.parent / target))
        for target in _LINK.findall(_CODE.sub("", page.read_text()))
        if "://" not in target
    }
    english = {path: ROOT / name for name, path in PAGES.items()}
    return {english.get(file, file) for file in found} - {ROOT / "README.md"}


def words(page: Path) -> set[str]:
    """Return what a page sets in code font: flags, commands, files, names."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    return {" ".join(word.split()) for word in _WORD.findall(text)}


@pytest.mark.parametrize("name", PAGES)
def test_chinese_page_is_in_step_with_english(name: str) -> None:
    english, chinese = ROOT / name, PAGES[name]
    for of in (code, headings, tables, words, links):
        assert of(chinese) == of(english), f"{chinese.relative_to(ROOT)} differs from {name} in its {of.__name__}"
    assert all(file.exists() for file in links(chinese))

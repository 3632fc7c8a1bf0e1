"""Links between pages lead to headings that are there, and every page can be found from the overview.

That links lead to files at all is tested with the examples in `tests/packaging`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import DOCS, ROOT

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_to_a_heading_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s#]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    inside = [(target, anchor) for target, anchor in links if "://" not in target]
    lost = [
        f"{target}#{anchor}"
        for target, anchor in inside
        if anchor not in _anchors((page.parent / target).resolve() if target else page)
    ]
    assert lost == []


def test_every_page_is_in_the_overview() -> None:
    overview = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"}
    assert pages == {page for page in pages if f"({page})" in overview}


def test_readme_links_proof_of_each_comparison() -> None:
    """The README shows where each claim next to others is proven."""
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| | swift:")[2].partition("\n\n")[0]
    claims = [line.split(" | ")[1] for line in table.splitlines()[2:]]
    assert len(claims) > 10
    assert [claim for claim in claims if not re.search(r"\]\((?:docs|packages)/[^)]+\)", claim)] == []


def _anchors(page: Path) -> set[str]:
    """Of a page's headings, in the manner of code hosts: lower case, hyphens for spaces, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

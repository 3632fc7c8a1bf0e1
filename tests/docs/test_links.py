"""Links between pages lead to files and headings, and every page can be found from the overview."""

from __future__ import annotations

import re
from pathlib import Path

from pages import DOCS, ROOT

FOLDERS = ("docs", "examples", "benchmarks", "packages")
PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")))]
LINK = re.compile(r"\]\(([^)\s#]*)#?([^)\s]*)\)")


def test_links_lead_to_files_and_headings() -> None:
    """Every link between pages names a file, and a heading of it, that exist."""
    lost = []
    for page in PAGES:
        for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / path).resolve() if path else page
            if "://" not in path and not (target.exists() and (not anchor or anchor in _anchors(target))):
                lost.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
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

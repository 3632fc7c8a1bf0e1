"""Links between pages lead to files and headings, every page is in the overview, and the README's image is safe."""

from __future__ import annotations

import html
import re
from pathlib import Path

from pages import DOCS, ROOT

FOLDERS = ("docs", "examples", "benchmarks", "packages")
PAGES = [
    *ROOT.glob("*.md"),
    ROOT / "llms.txt",
    *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))),
]
IMAGE = DOCS / "images" / "run.svg"
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
    recipes = {f"recipes/{page.name}" for page in (DOCS / "recipes").glob("*.md")} - {"recipes/README.md"}
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md", *recipes}
    assert pages == {page for page in pages if f"({page})" in overview}


def test_terminal_image_shows_losses_and_loads_nothing() -> None:
    """The image shows a run with its losses and fetches nothing."""
    image = IMAGE.read_text(encoding="utf-8")
    assert not re.search(r"url\((?!#)|href|@import|@font-face|<script", image)
    lines = html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", image))).replace("\xa0", " ")
    for text in ("swift sft --model tiny", "Objective", "Learning rate", "held out", "evaluation at step 30", "saved"):
        assert text in lines
    assert len(re.findall(r"step \d+/60  loss [\d.]+", lines)) >= 6
    assert "/tmp" not in lines
    assert "](docs/images/run.svg)" in (DOCS.parent / "README.md").read_text(encoding="utf-8")


def _anchors(page: Path) -> set[str]:
    """Of a page's headings, in the manner of code hosts: lower case, hyphens for spaces, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_comparison_cites_a_version_of_a_page_per_cell() -> None:
    """Each cell about another project links to one of its pages, at a commit."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.split("## Comparison")[1].split("## Limitations")[0]
    pages = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", table, re.MULTILINE))
    assert all(re.search(r"/(blob|tree)/[0-9a-f]{12}/", page) for page in pages.values())
    rows = re.findall(r"^\| (.+)\|$", table, re.MULTILINE)[1:]
    cells = [cell.strip() for row in rows for cell in row.split("|")[2:]]
    cited = {ref for cell in cells for ref in re.findall(r"\]\[([\w-]+)\]", cell)}
    assert cited == pages.keys()
    assert all("][" in cell for cell in cells if cell)

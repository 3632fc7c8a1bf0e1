"""The notebooks have every command and file of their tutorials, in order."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pages import DOCS, ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def cells(notebook: Path, kind: str) -> list[str]:
    found = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda each: each.stem)
def test_notebook_has_commands_and_files_of_tutorial(notebook: Path) -> None:
    page = (DOCS / "tutorial" / f"{notebook.stem}.md").read_text(encoding="utf-8")
    code = cells(notebook, "code")
    typed = re.findall(r"^\$ (.+?)(?<!\\)$", page, re.MULTILINE | re.DOTALL)
    ran = [cell.removeprefix("%%bash\n").partition(" << 'END'")[0] for cell in code if cell.startswith("%%bash\n")]
    assert ran == [line.replace("\\\n", " ") for line in typed]
    files = re.findall(r"^```\w+ (\S+)\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    assert [cell for cell in code if cell.startswith("%%writefile ")] == [
        f"%%writefile {name}\n{text}" for name, text in files
    ]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda each: each.stem)
def test_links_of_notebook_lead_to_files(notebook: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", "\n".join(cells(notebook, "markdown")))
    assert targets
    assert [each for each in targets if not (notebook.parent / each).exists()] == []

"""The plugins that the pages write are installed and used in a run, and the pages show the files of the templates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pages import DOCS, ROOT, blocks, commands, missing
from reader import Reader

from swift_demo.model import write_model

TEMPLATES = {file.name: file for file in ROOT.glob("packages/testing/src/swift_testing/templates/*/*.py")}
"""Files that `swift plugins new` writes under the names that the pages type."""
PAGES = (
    "how-to/write-an-observer.md",
    "how-to/write-an-objective.md",
    "how-to/write-an-optimizer.md",
    "how-to/write-a-tuner.md",
    "how-to/write-a-command.md",
    "how-to/write-a-reward.md",
    "how-to/rollouts.md",
    "tutorial/guessing-game.md",
    "plugins/write-an-engine.md",
    "plugins/write-an-exporter.md",
    "plugins/write-a-vocabulary.md",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=1)


def test_pages_show_the_files_of_the_templates() -> None:
    shown = {Path(block.file or "").name: block.text for name in PAGES for block in blocks(DOCS / name)}
    templates = {name: file.read_text() for name, file in TEMPLATES.items() if file.parent.name != "backend"}
    assert {name: shown.get(name) for name in templates} == templates


@pytest.mark.full
@pytest.mark.parametrize("name", PAGES)
def test_plugin_of_page_is_built_and_used(name: str, model: Path, tmp_path: Path) -> None:
    page, site, work = DOCS / name, tmp_path / "site", tmp_path / "work"
    for folder in (site, work):
        folder.mkdir()
    (work / "tiny").symlink_to(model)
    row = {"query": "What does A stand for?", "response": "Alfa"}
    (work / "alphabet.jsonl").write_text(json.dumps(row) + "\n")
    (work / "graded.jsonl").write_text(json.dumps({"text": "Alfa stands for A.", "grade": 4}) + "\n")
    for block in blocks(page):
        if block.file and Path(block.file).name not in TEMPLATES:
            (work / block.file).write_text(block.text, encoding="utf-8")
    reader = Reader(work, site)
    ran = 0
    for command in [each for block in blocks(page) if block.language == "console" for each in commands(block)]:
        if command.words()[0] == "pip":
            _install(work / command.words()[-1], site)
            continue
        done = reader.types(command)
        assert done.code == 0, f"{command.line}\n{done.printed}\n{done.complained}"
        assert missing(command.shown, done.printed) == [], f"{command.line}\n{done.printed}"
        ran += 1
    assert ran
    if name.endswith("write-an-objective.md"):
        logs = sorted(work.glob("output/tiny/*/logging.jsonl"), key=lambda log: log.stat().st_mtime_ns)
        assert len(logs) == 4
        first = json.loads(logs[0].read_text().splitlines()[0])
        # Tokens that are not learned yet count almost as in plain fine-tuning; gamma only reduces the loss.
        assert 0 < first["loss"] < first["nll"]


def _install(source: Path, site: Path) -> None:
    """Install a package with the build back end of this environment, since tests have no network."""
    pytest.importorskip("hatchling", reason="the build back end that the pages name; `make setup` installs it")
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)], check=True, cwd=source
    )

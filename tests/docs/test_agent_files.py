"""Files for agents and for reports name paths, targets, commands and versions that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from pages import ROOT, blocks, commands
from reader import Reader

from swift.plugins.entry import GROUPS
from swift_demo.model import write_model

SKILLS = sorted(ROOT.glob(".claude/skills/*/SKILL.md"))
TEMPLATES = sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"))
FILES = [*(ROOT / name for name in ("AGENTS.md", "llms.txt", "SECURITY.md", "CITATION.cff")), *SKILLS, *TEMPLATES]
NAMED = re.compile(r"(?:docs|examples|packages|tests|requirements|tools|\.claude)/[\w./*-]*[\w*]")
MAKE = re.compile(r"^make .*$|(?<=`)make [^`]*", re.MULTILINE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_named_paths_and_targets_exist(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert [path for path in NAMED.findall(text) if not [*ROOT.glob(path)]] == []
    targets = {name for line in MAKE.findall(text) for name in line.partition("#")[0].split()[1:]}
    assert targets <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_skills_have_names_and_descriptions() -> None:
    assert [file.parent.name for file in SKILLS] == ["debug-a-run", "train", "write-a-plugin"]
    for file in SKILLS:
        _, head, _ = file.read_text(encoding="utf-8").split("---\n", 2)
        facts = yaml.safe_load(head)
        assert facts["name"] == file.parent.name
        assert 40 < len(facts["description"]) <= 1024


def test_plugin_skill_names_groups_of_entry_points() -> None:
    (skill,) = (file for file in SKILLS if file.parent.name == "write-a-plugin")
    named = set(re.findall(r"`(swift\.\w+s)` \|", skill.read_text()))
    assert named == {*GROUPS} - {"swift.planners"}


@pytest.mark.full
def test_commands_of_skills_run_in_their_order(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write_model(work / "demo" / "model", hidden=32, layers=1)
    row = '{"query": "Read 416 aloud.", "response": "four one six"}\n'
    (work / "demo" / "train.jsonl").write_text(row * 8)
    reader = Reader(work)
    for name in ("train", "debug-a-run"):
        for block in blocks(ROOT / ".claude" / "skills" / name / "SKILL.md"):
            for command in commands(block) if block.language == "console" else ():
                if command.line not in ("swift doctor", "swift plugins --check"):  # they have tests of their own
                    done = reader.types(command)
                    assert done.code == 0, f"{command.line}\n{done.printed}\n{done.complained}"
    assert (work / "exported" / "model.safetensors").is_file()


def test_llms_file_has_title_summary_and_links() -> None:
    lines = (ROOT / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# swift"
    assert lines[2].startswith("> ")
    items = [line for line in lines if line.startswith("- ")]
    links = [re.fullmatch(r"- \[[^]]+\]\((docs/[\w/.-]+)\): .+", line) for line in items]
    assert len(links) > 10
    assert all(link and (ROOT / link[1]).is_file() for link in links)


def test_citation_has_version_and_licence_of_core() -> None:
    project = tomllib.loads((ROOT / "packages/core/pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert citation["authors"] == project["authors"]
    assert {"cff-version", "message", "title"} <= citation.keys()


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.stem)
def test_issue_template_is_a_valid_form(file: Path) -> None:
    form = yaml.safe_load(file.read_text())
    assert {"name", "description", "body"} <= form.keys()
    assert len({part["id"] for part in form["body"]}) == len(form["body"])
    for part in form["body"]:
        assert part["type"] in ("textarea", "dropdown", "checkboxes")
        assert part["attributes"]["label"]

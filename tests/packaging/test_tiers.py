"""Every test is run by CI, and only once: `make test-all` runs all of them, `make test` those that are quick."""

from __future__ import annotations

import os
import re
import shlex
import subprocess

import pytest
import tiers
from import_rules import ROOT

MAKE = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
"""Without what a `make` that runs these tests passes to its children."""


def commands(target: str) -> list[str]:
    """Returns what a target would run, in order."""
    shown = subprocess.run(["make", "-n", target], cwd=ROOT, env=MAKE, capture_output=True, text=True, check=True)
    return shown.stdout.splitlines()


def runs_of_pytest(target: str) -> list[list[str]]:
    """Returns the arguments of each, less the file that keeps the times."""
    found = [line.partition("-m pytest ")[2] for line in commands(target) if "-m pytest " in line]
    return [shlex.split(re.sub(r" --times=\S+", "", arguments)) for arguments in found]


def test_tiers_lint_and_run_all_folders(pytestconfig: pytest.Config) -> None:
    """`make test` and `make test-all` begin with the linters, differ in one marker, and leave no folder out."""
    ((*same, marker, quick),) = runs_of_pytest("test")
    assert (same, marker, quick) == (["-n", "3"], "-m", "not full")
    assert runs_of_pytest("test-all") == [same]
    for target in ("test", "test-all"):
        before, _, _ = "\n".join(commands(target)).partition("-m pytest ")
        for each in ("bin/mypy", "bin/ruff check", "bin/ruff format --check", "import_rules.py", "docs.py --check"):
            assert each in before
    assert pytestconfig.getini("testpaths") == ["tests"]
    assert not re.search(r"-k|--ignore|--deselect", " ".join(pytestconfig.getini("addopts")))
    assert [line for line in commands("test-all") if "SWIFT_" in line] == []
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in script if line.startswith("make ")] == ["make test-all"]


def test_named_tests_exist() -> None:
    """Statements about tests name tests that exist."""
    files = [str(each.relative_to(ROOT)) for each in (ROOT / "tests").rglob("test_*.py")]
    named = [*tiers.LONGEST_FIRST, *tiers.TOGETHER, *tiers.APART]
    assert [each for each in named if not any(file.startswith(each) for file in files)] == []


def test_values_that_come_one_after_the_other_are_all_tried() -> None:
    found = tiers.tiered(iter("abc"), "a", "c")
    assert [(each.values[0], [mark.name for mark in each.marks]) for each in found] == [
        ("a", []),
        ("b", ["full"]),
        ("c", ["rare"]),
    ]

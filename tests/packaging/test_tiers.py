"""Every test is run by CI, and only once: `make test-all` runs all of them, `make test` those that are quick."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
import tiers
from import_rules import ROOT
from processors import processor_of

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


TESTS = """
import time

def test_idle():
    pass

def test_busy():
    while time.process_time() < 1.0:
        pass
"""


def test_the_list_of_slow_tests_has_what_the_workers_measured(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "times", "-n", "1", "--times", "out/times.txt"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "helpers")}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    first, *lines = (tmp_path / "out" / "times.txt").read_text().splitlines()
    assert first.startswith("2 tests took ")
    assert [line.rpartition("::")[2] for line in lines if "::" in line] == ["test_busy", "test_idle"]
    assert any(line.endswith("  test_two.py") for line in lines)


def test_values_that_come_one_after_the_other_are_all_tried() -> None:
    found = tiers.tiered(iter("abc"), "a", "c")
    assert [(each.values[0], [mark.name for mark in each.marks]) for each in found] == [
        ("a", []),
        ("b", ["full"]),
        ("c", ["rare"]),
    ]


@pytest.mark.parametrize(
    ("worker", "workers", "has", "own"),
    [
        ("gw0", 4, {0, 1}, 0),
        ("gw3", 4, {0, 1}, 1),
        ("gw1", 2, {4, 7}, 7),
        ("gw4", 5, {0, 1}, None),
        ("gw1", 4, range(8), None),
        ("", 0, {0}, None),
    ],
)
def test_workers_keep_to_processors_where_there_are_few(
    worker: str, workers: int, has: Collection[int], own: int | None
) -> None:
    assert processor_of(worker, workers, has) == own

"""Every test is run by CI, and only once: by `make test`, or by what `make test-all` runs after it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess

import pytest
from import_rules import ROOT

MAKE = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
"""Without what a `make` that runs these tests hands on to its children."""


def commands(target: str) -> list[str]:
    """Returns what a target would run, in order."""
    shown = subprocess.run(["make", "-n", target], cwd=ROOT, env=MAKE, capture_output=True, text=True, check=True)
    return shown.stdout.splitlines()


def runs_of_pytest(target: str) -> list[list[str]]:
    """Returns the arguments of each, less the file that keeps the times."""
    found = [line.partition("-m pytest ")[2] for line in commands(target) if "-m pytest " in line]
    return [shlex.split(re.sub(r" --times \S+", "", arguments)) for arguments in found]


def test_the_two_runs_differ_in_one_marker_and_nothing_else() -> None:
    ((*same, quick),) = runs_of_pytest("test")
    assert (same, quick) == (["-n", "2", "-m"], "not full")
    assert runs_of_pytest("test-all") == [[*same, "not full"], [*same, "full"]]


def test_both_run_all_folders_and_no_variable_leaves_anything_out(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getini("testpaths") == ["tests"]
    assert not re.search(r"-k|--ignore|--deselect", " ".join(pytestconfig.getini("addopts")))
    assert [line for line in commands("test-all") if "SWIFT_" in line] == []


def test_ci_runs_what_the_readme_says_that_it_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    (called,) = [line for line in script if line.startswith("make ")]
    assert called == "make test-all"
    readme = (ROOT / "README.md").read_text()
    assert re.search(rf"^{called} +# ", readme, re.MULTILINE)
    assert f"`.ci/run` calls `{called}`" in readme

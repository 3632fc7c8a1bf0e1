"""`make release-check` ends with commands that can be typed; nothing is tagged or published here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import release_check

OWN = "packages/core/src/swift/installation.py"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the commands change, before a release."""
    (tmp_path / OWN).parent.mkdir(parents=True)
    shutil.copy(release_check.ROOT / OWN, tmp_path / OWN)
    heading = f"# Changelog\n\n## [{release_check.version_of_core()}] - unreleased\n"
    (tmp_path / "CHANGELOG.md").write_text(heading)
    monkeypatch.setattr(release_check, "CHANGES", tmp_path / "CHANGELOG.md")
    monkeypatch.setattr(release_check, "ON_INDEX", False)
    return tmp_path


def test_release_is_prepared_then_published(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = release_check.version_of_core()
    *prepare, runs, commit, again = release_check.release_commands(version)
    assert again == "make release-check"
    assert f"release: {version}" in commit
    assert (release_check.ROOT / runs.removeprefix("python ")).is_file()
    for command in prepare:
        assert command.startswith("sed -i ")
        subprocess.run(command, shell=True, check=True, cwd=checkout)
    changes = (checkout / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{version}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE)
    assert "\nON_INDEX = True\n" in (checkout / OWN).read_text()
    monkeypatch.setattr(release_check, "ON_INDEX", True)
    tag, push, publish = release_check.release_commands(version)
    assert f"v{version}" in tag
    assert f"v{version}" in push
    assert publish == "uv publish build/release/dist/*"

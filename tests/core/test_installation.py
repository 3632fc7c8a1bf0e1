"""The commands of hints follow from how swift was installed; nothing is installed here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from swift import installation
from swift.installation import pip_install

MEGATRON = "swift-core[megatron]"


@pytest.fixture
def installed_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Return a function that records another origin of swift; pip is that of the environment."""
    monkeypatch.setattr(installation, "_pip", lambda command: ["pip", command])
    monkeypatch.chdir(tmp_path)

    def record(**origin: object) -> None:
        monkeypatch.setattr(installation, "_origin", lambda: origin)

    return record


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    packages = tmp_path / "check out" / "packages"
    for name in ("core", "rl"):
        (packages / name).mkdir(parents=True)
        (packages / name / "pyproject.toml").touch()
    return packages


def test_hint_of_checkout_names_its_folders(installed_from, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from(url=(checkout / "core").as_uri(), dir_info={})
    assert pip_install(MEGATRON) == f'pip install "{checkout}/core[megatron]"'
    assert pip_install("adlfs") == "pip install adlfs"
    assert pip_install("swift-signum", upgrade=True) == "pip install --upgrade swift-signum"
    assert pip_install("swift-core", upgrade=True).startswith(f'git -C "{checkout.parent}" pull && pip install')
    installed_from(url=(checkout / "core").as_uri(), dir_info={"editable": True})
    monkeypatch.chdir(checkout.parent)
    assert pip_install(MEGATRON) == 'pip install -e "./packages/core[megatron]"'
    assert pip_install("swift-rl[math]") == 'pip install -e "./packages/rl[math]"'


def test_hint_of_wheels_names_their_folder(installed_from, tmp_path: Path) -> None:
    installed_from(url=(tmp_path / "swift_core-0.1.0-py3-none-any.whl").as_uri(), archive_info={})
    assert pip_install(MEGATRON) == f'pip install --find-links {tmp_path} "swift-core[megatron]"'
    assert pip_install("adlfs") == "pip install adlfs"


def test_hint_of_repository_names_its_commit(installed_from) -> None:
    installed_from(url="https://host/swift.git", vcs_info={"vcs": "git", "commit_id": "c0ffee"})
    assert pip_install(MEGATRON) == (
        'pip install "swift-core[megatron] @ git+https://host/swift.git@c0ffee#subdirectory=packages/core"'
    )


def test_hint_without_origin_names_wheels_until_release(installed_from, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from()
    monkeypatch.setattr(installation, "ON_INDEX", False)
    assert pip_install(MEGATRON) == 'pip install --find-links dist "swift-core[megatron]"'
    monkeypatch.setattr(installation, "ON_INDEX", True)
    assert pip_install(MEGATRON) == 'pip install "swift-core[megatron]"'


def test_hint_leaves_distutils_alone() -> None:
    """setuptools takes the import spec of pip as a start of pip, and drops its distutils: Megatron then fails."""
    import setuptools.dist  # noqa: F401 - imports distutils

    assert "distutils" in sys.modules
    pip_install("adlfs")
    assert "distutils" in sys.modules


def test_hint_names_pip_of_this_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first `pip` on PATH is named if it is this environment's, and uv where the environment has no pip."""
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "pip").touch(mode=0o755)
    monkeypatch.setattr(installation.sysconfig, "get_path", lambda _: str(own))
    monkeypatch.setenv("PATH", str(own))
    assert pip_install("adlfs") == "pip install adlfs"
    monkeypatch.setenv("PATH", str(other))
    assert pip_install("adlfs") == f"{sys.executable} -m pip install adlfs"
    monkeypatch.setattr(installation, "_has_pip", lambda: False)
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert pip_install("adlfs") == "uv pip install adlfs"
    monkeypatch.delenv("VIRTUAL_ENV")
    assert pip_install("adlfs") == f"uv pip install --python {sys.executable} adlfs"

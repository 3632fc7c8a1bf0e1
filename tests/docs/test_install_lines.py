"""Every `pip install` line of a page works in a checkout, since nothing is released yet."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from pages import DOCS, ENGLISH, ROOT

INSTALL = DOCS / "how-to" / "install.md"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md")), *ENGLISH]
LINE = re.compile(r"pip install [^`\n]*")
OF_THE_CHECKOUT = re.compile(r"\./packages/([\w-]+)(?:\[([\w,-]+)\])?")


def _lines(page: Path) -> list[str]:
    return LINE.findall(page.read_text(encoding="utf-8"))


def _problem(line: str) -> str | None:
    """Return why the line does not work in the root of a checkout; None if it does."""
    named = {folder: set(filter(None, extras.split(","))) for folder, extras in OF_THE_CHECKOUT.findall(line)}
    found = {f"swift-{folder}" for folder in named}
    needed = set()
    for folder, extras in named.items():
        file = ROOT / "packages" / folder / "pyproject.toml"
        if not file.is_file():
            return f"there is no packages/{folder}"
        project = tomllib.loads(file.read_text())["project"]
        options = project.get("optional-dependencies", {})
        if unknown := extras - options.keys():
            return f"packages/{folder} has no extra {unknown}"
        of_extras = {Requirement(each).name for extra in extras for each in options[extra]}
        if folder == "core":
            found |= of_extras  # see packages/core/hatch_build.py
        else:
            needed |= of_extras
        needed |= {Requirement(each).name for each in project["dependencies"]}
    missing = {name for name in needed - found if name.startswith("swift-")}
    if missing:
        return f"{sorted(missing)} cannot be found"
    released = re.search(r"(?<!\./)swift-", line) and "--find-links" not in line
    return "it names a package that is not released" if released else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_install_lines_work_in_checkout(page: Path) -> None:
    text = INSTALL.read_text(encoding="utf-8")
    later = LINE.findall(text[text.index("## Once swift is released") :]) if page == INSTALL else []
    assert [(line, _problem(line)) for line in _lines(page) if line not in later and _problem(line)] == []


def test_install_page_lists_packages_and_extras() -> None:
    text = INSTALL.read_text(encoding="utf-8")
    for file in ROOT.glob("packages/*/pyproject.toml"):
        assert file.parent.name.rpartition("-")[2] in text
        extras = tomllib.loads(file.read_text())["project"].get("optional-dependencies", {})
        assert [extra for extra in extras if not re.search(rf"\b{extra}\b", text)] == []


def _extras(requirements: list[str]) -> list[str]:
    """Return the requirements of an extra of core as pip reads them in this checkout."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "packages" / "core" / "hatch_build.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    metadata = {"optional-dependencies": {"extra": requirements}}
    hook.ExtrasOfCheckout(str(ROOT / "packages" / "core"), {}).update(metadata)
    return metadata["optional-dependencies"]["extra"]


def test_extras_of_core_are_folders_for_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip finds swift's own packages in the checkout, with those that they need; hatchling leaves their versions."""
    pinned = ["swift-export-vllm[vllm]==0.1.0", "swift-demo==0.1.0", "swift-core[fsdp]", "pillow>=11"]
    assert _extras([*pinned]) == pinned
    monkeypatch.setenv("_PYPROJECT_HOOKS_BUILD_BACKEND", "hatchling.build")
    found = _extras([*pinned])
    folder = (ROOT / "packages").as_uri()
    assert found[0] == f"swift-export-vllm[vllm] @ {folder}/export-vllm"
    assert {f"swift-{name} @ {folder}/{name}" for name in ("demo", "infer", "objectives", "testing")} < {*found}
    assert found[-2:] == pinned[-2:]

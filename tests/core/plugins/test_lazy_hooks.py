"""Hooks that name the function which implements them: `lazy_hook`."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from swift.contracts import Capabilities
from swift.errors import PluginError
from swift.hookspecs import BackendHooks, lazy_hook, lazy_hooks, resolve_hook
from swift.plugins.check import check_hooks
from swift.plugins.discover import list_plugins
from swift.plugins.entry import PluginEntry
from swift.plugins.hooks import Hooks, open_hooks
from swift.plugins.load import LoadedPlugin, load

ENTRY = PluginEntry("swift.backends", "acme", "acme-backend", "2.5", "acme:Plugin")
FUNCTIONS = """
calls = []

def check(run):
    calls.append(run)

def step(objective, batch, scale=1.0):
    return batch, objective, scale

def named_otherwise(run, net):
    return net

async def later(run):
    return run

class State:
    def __init__(self, model):
        self.step = model
"""
OPEN = {"Any", "TrainState", "BaseModel"}
"""Types for which a backend has its own."""


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "lazy_acme.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("lazy_acme", None)


def hooks(**targets: str) -> Hooks:
    members: dict[str, Any] = {name: lazy_hook(f"lazy_acme:{target}") for name, target in targets.items()}
    return open_hooks(LoadedPlugin(ENTRY, type("Plugin", (), members)(), capabilities=Capabilities()))


def test_target_is_imported_when_the_hook_is_called() -> None:
    opened = hooks(swift_check_layout="check")
    assert "lazy_acme" not in sys.modules
    opened.swift_check_layout("run")  # type: ignore[arg-type]  # passed unchanged
    assert sys.modules["lazy_acme"].calls == ["run"]


def test_target_takes_its_arguments_by_name() -> None:
    """It may order them otherwise, leave some out, and have defaults of its own; a class is called as well."""

    class Plugin:
        swift_train_step = lazy_hook("lazy_acme:step")
        swift_shard = lazy_hook("lazy_acme:State")

    assert Plugin().swift_train_step("run", "state", batch="batch", objective="loss") == ("batch", "loss", 1.0)
    assert Plugin().swift_shard("run", 3).step == 3


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("lazy_acme:lacking", "module 'lazy_acme' has no attribute 'lacking'"),
        ("lazy_acme_2:check", "ModuleNotFoundError: No module named 'lazy_acme_2'"),
        ("no target", "swift_wrap_model is implemented by 'no target', which cannot be imported"),
        ("lazy_acme:named_otherwise", "has the parameter 'net', but swift_wrap_model offers run, source."),
        ("lazy_acme:later", "lazy_acme:later is asynchronous"),
    ],
)
def test_bad_target_is_blamed_on_its_plugin(target: str, error: str) -> None:
    from swift.plugins.blame import explained

    plugin = type("Plugin", (), {"swift_wrap_model": lazy_hook(target)})
    opened = open_hooks(LoadedPlugin(ENTRY, plugin(), capabilities=Capabilities()))
    with pytest.raises((ImportError, TypeError)) as raised:
        opened.swift_wrap_model(None, None)  # type: ignore[arg-type]  # not read
    explanation = explained(raised.value)
    assert explanation is not None
    assert "backend 'acme' (acme-backend 2.5) failed in swift_wrap_model: " in explanation.message
    assert error in explanation.message


def test_unknown_hook_is_refused_at_selection() -> None:
    plugin = type("Plugin", (), {"swift_setpu": lazy_hook("lazy_acme:check")})
    with pytest.raises(PluginError, match=r"unknown hook 'swift_setpu'.\nRename it. Did you mean 'swift_setup'"):
        check_hooks(ENTRY, plugin(), ())


def declared() -> Iterator[tuple[str, str, str]]:
    for entry in list_plugins("swift.backends"):
        for hook, target in lazy_hooks(load(entry).object).items():
            yield entry.name, hook, target


@pytest.mark.parametrize(("backend", "hook", "target"), list(declared()))
def test_targets_have_the_types_of_their_hooks(backend: str, hook: str, target: str) -> None:
    """Read from the source, since importing the engines takes long; the conformance kit imports them."""
    module, _, name = target.partition(":")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    named = (ast.FunctionDef, ast.ClassDef)
    (function,) = [each for each in tree.body if isinstance(each, named) and each.name == name]
    if isinstance(function, ast.ClassDef):
        return  # `TorchState.__init__` has the types for all its subclasses
    offered = inspect.signature(getattr(BackendHooks, hook))
    for argument in function.args.args:
        wanted = offered.parameters[argument.arg].annotation
        assert argument.annotation is not None
        assert wanted in OPEN or ast.unparse(argument.annotation) == wanted
    wanted = offered.return_annotation
    assert function.returns is not None
    returned = ast.unparse(function.returns)
    assert wanted in OPEN or returned in (wanted, wanted.removesuffix(" | None")) or (returned == "None" in wanted)


def test_resolved_target_names_the_arguments_it_takes() -> None:
    function, names = resolve_hook("swift_train_step", "lazy_acme:step")
    assert function is sys.modules["lazy_acme"].step
    assert names == ("objective", "batch")

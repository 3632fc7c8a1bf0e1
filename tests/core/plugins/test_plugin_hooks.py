"""One run's plugins behind the typed facade, and the comparison of plugins across processes."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swift.errors import PluginError
from swift.plugins.fingerprint import compare_fingerprints, fingerprint
from swift.plugins.hooks import open_hooks
from swift.plugins.load import load_backend, load_observers

ANYTHING: Any = object()


def test_each_hook_passes_named_arguments(installed: Path) -> None:
    """Each phase reaches the backend with the arguments that it names."""
    hooks = open_hooks(load_backend("acme"))
    log: Any = []
    assert hooks.swift_setup(ANYTHING).data_size == 1
    assert hooks.swift_wrap_model(ANYTHING, ANYTHING) is ANYTHING
    state: Any = SimpleNamespace(step=0)
    assert hooks.swift_shard(ANYTHING, state) is state
    assert hooks.swift_train_step(ANYTHING, ANYTHING, 3, ANYTHING).loss == 3.0  # type: ignore[arg-type]  # a stand-in batch
    hooks.swift_check_layout(ANYTHING)  # optional, and not implemented
    hooks.swift_save_checkpoint(ANYTHING, ANYTHING, log)
    hooks.swift_load_checkpoint(ANYTHING, ANYTHING, log)
    hooks.swift_teardown(log)
    assert log == ["saved", "loaded", "torn down"]
    weight: Any = torch.zeros(2)
    assert list(hooks.swift_iter_weights(ANYTHING, weight)) == [("weight", weight)]


def test_observer_wrapper_surrounds_step(installed: Path) -> None:
    hooks = open_hooks(load_backend("acme"), observers=load_observers(["doubler", "listener"]))
    seen = sys.modules["acme_observers"].seen
    seen.clear()
    result = hooks.swift_train_step(ANYTHING, ANYTHING, 3, ANYTHING)  # type: ignore[arg-type]  # a stand-in batch
    hooks.swift_step_end(ANYTHING, "record")  # type: ignore[arg-type]  # passed unchanged
    assert result.loss == 6.0
    assert seen == [("before", 3), ("after", 3.0), ("told", "record")]


def test_runs_have_separate_plugins(installed: Path) -> None:
    open_hooks(load_backend("acme"), observers=load_observers(["doubler"]))
    alone = open_hooks(load_backend("acme"))
    assert alone.swift_train_step(ANYTHING, ANYTHING, 3, ANYTHING).loss == 3.0  # type: ignore[arg-type]  # a stand-in batch
    assert alone.versions == {"backend:acme": "acme-good 1.0"}


def test_hook_without_return_value_is_named(installed: Path) -> None:
    hooks = open_hooks(load_backend("acme"))
    with pytest.raises(PluginError, match=r"swift_forward returned nothing.*acme-good 1\.0"):
        hooks.swift_forward(ANYTHING, ANYTHING, ANYTHING, ANYTHING)


def test_other_version_on_one_rank_stops_all(installed: Path) -> None:
    mine = load_backend("acme")
    other = dataclasses.replace(mine, entry=dataclasses.replace(mine.entry, version="1.1"))
    everyone = [fingerprint([mine]), fingerprint([mine]), fingerprint([other])]
    messages = set()
    for own in everyone:
        with pytest.raises(PluginError) as caught:
            compare_fingerprints(own, lambda _: everyone)
        messages.add(str(caught.value))
    assert len(messages) == 1
    message = messages.pop()
    assert "acme-good 1.1" in message
    assert "on rank 2" in message
    assert "acme-good 1.0" in message


def test_plugins_are_compared_across_ranks(installed: Path) -> None:
    backend, observers = load_backend("acme"), load_observers(["listener"])
    everyone = [fingerprint([backend]), fingerprint([backend, *observers])]
    with pytest.raises(PluginError, match=r"'listener' is acme-observers 1\.0 .* on rank 1, but not there on rank 0"):
        compare_fingerprints(everyone[0], lambda _: everyone)

    plugins = [backend, *observers]  # the order of registration does not matter
    compare_fingerprints(fingerprint(plugins), lambda mine: [mine, fingerprint(plugins[::-1])])

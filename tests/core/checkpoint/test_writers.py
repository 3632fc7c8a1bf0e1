"""Writers that pass on what a backend writes, under the names of a role or without the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from swift.checkpoint.writers import owned_facts, owned_writer, weights_only_writer


class Collected:
    """A writer that keeps what it is passed."""

    def __init__(self) -> None:
        self.passed: dict[str, Any] = {}
        self.told: dict[str, Any] = {}

    def tensors(self, tensors: Mapping[str, Any]) -> None:
        self.passed |= tensors

    def stream(self, tensors: Iterator[tuple[str, Any]]) -> None:
        self.passed |= dict(tensors)

    def facts(self, facts: Mapping[str, Any]) -> None:
        self.told |= facts


def test_role_owns_its_tensors_and_facts() -> None:
    whole = Collected()
    writer = owned_writer(whole, "critic")
    writer.tensors({"model.a": 1, "optim.a.step": 2})
    writer.stream(iter([("model.b", 3)]))
    writer.facts({"scaler": {}})
    assert whole.passed == {"critic/model.a": 1, "critic/optim.a.step": 2, "critic/model.b": 3}
    assert owned_facts(whole.told, "critic") == {"scaler": {}}
    assert whole.told == {"critic/scaler": {}}


def test_optimizer_state_of_every_role_is_left_out() -> None:
    whole = Collected()
    writer = weights_only_writer(whole)
    owned_writer(writer, "critic").tensors({"model.a": 1, "optim.a.step": 2})
    writer.stream(iter([("model.b", 3), ("optim.b.step", 4)]))
    writer.facts({"scaler": {}})
    assert whole.passed == {"critic/model.a": 1, "model.b": 3}
    assert whole.told == {"scaler": {}}

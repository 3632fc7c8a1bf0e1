"""What a run says of itself before and after it is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from swift.config.sections import Config
from swift.contracts import Run, Topology, World


class Options(BaseModel):
    """A backend's own."""

    bucket: int = 3


class Others(BaseModel):
    """Another backend's."""


@pytest.fixture
def new_run() -> Callable[..., Run]:
    def make(**fields: object) -> Run:
        config = Config.model_validate({"backend": {"name": "torch"}})
        return Run(config, Options(), Path(), World(), say=lambda _: None, **fields)  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(("name", "when"), [("topology", "swift_setup"), ("schedule", "swift_shard")])
def test_early_read_reports_when_value_is_known(new_run: Callable[..., Run], name: str, when: str) -> None:
    with pytest.raises(AttributeError, match=rf"Run\.{name} is not known yet: .*{when}"):
        getattr(new_run(), name)


def test_a_topology_can_be_given_at_once_or_set_later(new_run: Callable[..., Run]) -> None:
    topology, later = Topology(World(), 0, 1), new_run(topology=None)
    assert new_run(topology=topology).topology is topology
    assert getattr(later, "topology", None) is None
    later.topology = topology
    assert later.topology is topology


def test_options_are_those_of_the_backend_that_asks(new_run: Callable[..., Run]) -> None:
    assert new_run().options(Options).bucket == 3
    with pytest.raises(TypeError, match="The backend's options are Options, not Others: torch"):
        new_run().options(Others)

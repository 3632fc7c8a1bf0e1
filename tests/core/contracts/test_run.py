"""Stages of a run: each is frozen, and has what is known at its time."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from pydantic import BaseModel

from swift.config.sections import Config
from swift.contracts import ModelRole, RequestedRun, Run, Topology, World


class Options(BaseModel):
    """A backend's own."""

    bucket: int = 3


class Others(BaseModel):
    """Another backend's."""


@pytest.fixture
def requested() -> RequestedRun:
    config = Config.model_validate({"backend": {"name": "torch"}})
    return RequestedRun(config, Options(), Path("output"), World(), say=lambda _: None)


@pytest.fixture
def run(requested: RequestedRun) -> Run:
    return requested.opened(Topology(World(), 0, 1)).prepared(7, lambda step: 0.5**step)


def test_stage_adds_what_has_become_known(requested: RequestedRun, run: Run) -> None:
    """A run that is only requested has no topology to read; the last stage has everything of the stages before."""
    assert not hasattr(requested, "topology")
    assert (run.topology.data_size, run.total_steps, run.schedule(2)) == (1, 7, 0.25)
    assert run.config is requested.config
    assert run.options(Options) is requested.backend_options


def test_stages_share_facts_and_backend_state(requested: RequestedRun, run: Run) -> None:
    """What a backend keeps in `swift_setup` is there in all hooks, and in the runs of other roles; facts are not."""
    requested.keep("a mesh")
    requested.facts["kernels"] = "fused"
    critic = run.for_role(ModelRole("critic", run.config.model))
    assert [each.backend_state for each in (run, critic, replace(run, folder=Path()))] == ["a mesh"] * 3
    assert run.facts["kernels"] == "fused"
    assert (critic.role, dict(critic.facts)) == ("critic", {})
    run.keep(None)
    assert requested.backend_state is None


@pytest.mark.parametrize("name", ["config", "folder", "topology", "total_steps", "schedule"])
def test_run_cannot_be_changed(run: Run, name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(run, name, getattr(run, name))


def test_options_are_those_of_asking_backend(run: Run) -> None:
    assert run.options(Options).bucket == 3
    with pytest.raises(TypeError, match="The backend's options are Options, not Others: torch"):
        run.options(Others)

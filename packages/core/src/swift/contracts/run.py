"""A run, stage by stage: requested, opened, ready for its model. Hooks get the stage that they may rely on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from swift.contracts.facts import RunFacts
from swift.contracts.role import POLICY, ModelRole

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from swift.config.sections import Config
    from swift.contracts.inference import InferenceEngine
    from swift.data.batch import MediaReader

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The rank of this process among all processes of the run, known before any group exists."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    machines: int = 1


@dataclass(frozen=True)
class Topology:
    """Result of `swift_setup`: this process's device and its slice of every batch.

    - `data_rank`: Which slice of each global batch this process trains on; processes that share a slice share the
      number.
    - `data_size`: Into how many slices each global batch is cut.
    - `layout`: Sizes of the parallel dimensions in force, for people to read: {'dp_replicate': 2}.
    """

    world: World
    data_rank: int
    data_size: int
    device: str = "cpu"
    layout: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_main(self) -> bool:
        """The one process that writes to the terminal and renames folders."""
        return self.world.rank == 0


@dataclass
class _Kept:
    """What a backend keeps."""

    value: Any = None


@dataclass(frozen=True, eq=False, repr=False)
class RequestedRun:
    """A run as it was requested: what `swift_check_layout` and `swift_setup` get. One object per process, made by core.

    A run is frozen: at each stage core makes a new object, which has what has become known.

    - `backend_options`: The `backend` section, validated by the backend's own model.
    - `folder`: The parent of the run's folder; from `OpenedRun` on the folder itself, which no other run writes into.
    - `say`: Prints a line for the user, on one process only.
    - `plugins`: Plugin → 'distribution version', of those registered.
    - `role`: Which model of the run the hooks are called for. A role other than the policy has a run of its own.
    - `planned_only`: Whether the run is only planned, for devices that this machine may lack: `swift_check_layout`
      ignores devices.
    - `facts`: What a reader of the run would want to know; core and the backend add to it.
    - `kept`: Holds `backend_state`.
    """

    config: Config
    backend_options: BaseModel
    folder: Path
    world: World
    say: Callable[[str], None]
    plugins: Mapping[str, str] = field(default_factory=dict)
    role: str = POLICY
    planned_only: bool = False
    facts: RunFacts = field(default_factory=RunFacts)
    kept: _Kept = field(default_factory=_Kept)

    @property
    def backend_state(self) -> Any:
        """Return what the backend keeps from `swift_setup` to `swift_teardown`; None where it keeps nothing.

        Process groups, meshes, what is to be taken down: core never looks at it, and no backend keeps such things in
        module globals. All stages and roles of a run share it.
        """
        return self.kept.value

    def keep(self, state: Any) -> None:
        """Keep the backend's own state; None forgets it."""
        self.kept.value = state

    def options(self, kind: type[T]) -> T:
        """Return the `backend` section as the model that the backend declares (`config_model`)."""
        if not isinstance(self.backend_options, kind):
            raise TypeError(
                f"The backend's options are {type(self.backend_options).__name__}, not {kind.__name__}: "
                f"{self.config.backend.name} is the backend of this run."
            )
        return self.backend_options

    @property
    def timeout(self) -> timedelta:
        """For groups of processes: a collective fails a while after the watchdog would have said who is waited for."""
        return timedelta(minutes=1.5 * self.config.train.timeout_minutes)

    def opened(self, topology: Topology) -> OpenedRun:
        """Return the run whose processes have met."""
        return OpenedRun(**vars(self), topology=topology)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class OpenedRun(RequestedRun):
    """A run whose processes have met: what `swift_check_model` and `swift_teardown` get."""

    topology: Topology

    def for_role(self, role: ModelRole) -> OpenedRun:
        """Return the run that hooks get for another model of the same run.

        Its configuration has the role's sections, and its facts are its own. Folder, world, topology and
        `backend_state` are shared.
        """
        shared = {each.name: getattr(self, each.name) for each in fields(OpenedRun)}
        return OpenedRun(**{**shared, "config": role.config(self.config), "role": role.name, "facts": RunFacts()})

    def prepared(
        self, total_steps: int, schedule: Callable[[int], float], media_reader: MediaReader | None = None
    ) -> Run:
        """Return the run that is ready for its model."""
        return Run(**vars(self), total_steps=total_steps, schedule=schedule, media_reader=media_reader)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Run(OpenedRun):
    """A run that is ready for its model: what all further hooks get. Its configuration is final.

    - `schedule`: Learning rate by step.
    - `media_reader`: Reads the images of samples, where the data sets have any.
    - `adapter_start`: What adapters begin with that the weights or the first batches decide, by names on disk: what
      batches decide is there before `swift_wrap_model`, which adds the rest. Emptied after `swift_shard`.
    - `send_weights`: Updates an inference engine to the weights in training, adapters merged in. Called on every
      process between two steps, each with an engine of its own or None. Observers and the loop have it, once there is a
      model.
    """

    total_steps: int
    schedule: Callable[[int], float]
    media_reader: MediaReader | None = None
    adapter_start: dict[str, torch.Tensor] = field(default_factory=dict)
    send_weights: Callable[[InferenceEngine | None], None] | None = None

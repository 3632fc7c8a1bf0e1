"""Facts of a run: its configuration, each process's position, and the decisions made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from swift.contracts.facts import ModelFacts, RunFacts
from swift.contracts.role import POLICY, ModelRole

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from swift.config.sections import Config
    from swift.contracts.inference import InferenceEngine
    from swift.data.batch import MediaReader

T = TypeVar("T")


class SetLater(Generic[T]):
    """A field of a dataclass that becomes known during the run; reading it before is an error that says when it is.

    `getattr(run, name, None)` asks whether it is set.
    """

    def __init__(self, when: str) -> None:
        self._when = when
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type | None = None) -> T:
        value = None if instance is None else vars(instance).get(self._name)
        if value is None and instance is not None:
            raise AttributeError(f"{type(instance).__name__}.{self._name} is not known yet: {self._when}.")
        return value  # type: ignore[return-value]  # asked of the class: None, the default of the field

    def __set__(self, instance: object, value: T | None) -> None:
        vars(instance)[self._name] = value


@dataclass(frozen=True)
class World:
    """The rank of this process among all processes of the run, known before any group exists."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1


@dataclass(frozen=True)
class Topology:
    """Result of `swift_setup`: this process's device and its slice of every batch."""

    world: World
    data_rank: int
    """Which slice of each global batch this process trains on; processes that share a slice share the number."""
    data_size: int
    """Into how many slices each global batch is cut."""
    device: str = "cpu"
    layout: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the parallel dimensions in force, for people to read: {'dp_replicate': 2}."""

    @property
    def is_main(self) -> bool:
        """The one process that writes to the terminal and renames folders."""
        return self.world.rank == 0


@dataclass(eq=False, repr=False)
class Run:
    """Everything about one run that hooks may need. One object per process, made by core."""

    config: Config
    backend_options: BaseModel
    """The `backend` section, validated by the backend's own model."""
    folder: Path
    """The run's own, which no other run writes into; in `swift_check_layout` and `swift_setup` still its parent."""
    world: World
    say: Callable[[str], None]
    """Prints a line for the user, on one process only."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """Plugin → 'distribution version', of those registered."""
    topology: SetLater[Topology] = SetLater("swift_setup returns it")
    """Raises before `swift_setup` has returned it."""
    schedule: SetLater[Callable[[int], float]] = SetLater("it is made once the number of steps is, before swift_shard")
    """Learning rate by step; raises before it is set, which is before `swift_shard`."""
    total_steps: int = 0
    adapter_config: dict[str, Any] | None = None
    """PEFT configuration of the adapters in training, as JSON values; set by `swift_wrap_model` where there are any."""
    adapter_start: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What adapters begin with that the weights or the first batches decide, by names on disk. What batches decide is
    set before `swift_wrap_model`, which keeps it, the rest by it; forgotten after `swift_shard`."""
    send_weights: Callable[[InferenceEngine | None], None] | None = None
    """Updates an inference engine to the weights in training, adapters merged in. Called on every process between two
    steps, each with an engine of its own or None; set once there is a model."""
    media_reader: MediaReader | None = None
    """Reads the images of samples; set before `swift_wrap_model` where the data sets have any."""
    model_facts: ModelFacts | None = None
    """Set by `swift_wrap_model` (`build_view` of the toolkit does); without it no MFU is shown."""
    facts: RunFacts = field(default_factory=RunFacts)
    """Decisions that a reader of the run would want to know."""
    backend_state: Any = None
    """The backend's own, from `swift_setup` to `swift_teardown`: process groups, meshes, what is to be taken down. Core
    never looks at it, and no backend keeps such things in module globals."""

    planned_only: bool = False
    """Whether the run is only planned, for devices that this machine may lack: `swift_check_layout` ignores devices."""

    role: str = POLICY
    """Which model of the run the hooks are called for. A role other than the policy has a `Run` of its own."""

    def for_role(self, role: ModelRole) -> Run:
        """Return the `Run` that hooks get for another model of the same run.

        Its configuration has the role's sections; model facts, adapter configuration and schedule are its own. Folder,
        world, topology and `backend_state` are shared.
        """
        return Run(
            config=role.config(self.config),
            backend_options=self.backend_options,
            folder=self.folder,
            world=self.world,
            say=self.say,
            plugins=self.plugins,
            topology=self.topology,
            total_steps=self.total_steps,
            backend_state=self.backend_state,
            role=role.name,
        )

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

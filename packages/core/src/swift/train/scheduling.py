"""Which samples each step takes: the schedule of the objective, with what it may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swift.contracts import ScheduleContext
from swift.data.schedules import BatchLayout, EpochSchedule, default_schedule, rows_in_memory
from swift.models.adapter_file import kind_of
from swift.train.reference import Mode, to_be_scored

if TYPE_CHECKING:
    from swift.contracts import (
        BatchSchedule,
        ForwardResult,
        InferenceEngine,
        Objective,
        OpenedRun,
        OpenRole,
        Run,
        TrainState,
    )
    from swift.data.batch import Batch, Row
    from swift.data.pipeline import PreparedData
    from swift.data.store import SampleSet
    from swift.models.source import HfSource
    from swift.plugins.hooks import Hooks
    from swift.processes.comms import Comms


class ModelInTraining:
    """The model, for schedules. A schedule is made before there is one; batches are asked for later."""

    def __init__(self, hooks: Hooks, roles: Iterable[str] = ()) -> None:
        self.role_names = frozenset(roles)
        self._hooks = hooks
        self._loaded: tuple[Run, TrainState, Mapping[str, OpenRole]] | None = None

    def loaded(self, run: Run, state: TrainState, roles: Mapping[str, OpenRole]) -> None:
        """Set the model and the other models of the run, once they are distributed."""
        self._loaded = run, state, roles

    def _ready(self, method: str) -> tuple[Run, TrainState, Mapping[str, OpenRole]]:
        if self._loaded is None:
            raise RuntimeError(
                f"{method} of the schedule's context works from the first batch on: no model is loaded yet"
            )
        return self._loaded

    def forward(self, batch: Batch, objective: Objective) -> ForwardResult:
        """Evaluate an objective with the weights as they are now; called on every process."""
        run, state, _ = self._ready("forward")
        return self._hooks.swift_forward(run, state, batch, objective)

    def send_weights(self, engine: InferenceEngine | None) -> None:
        """Update an inference engine to the weights as they are now; called on every process."""
        run, *_ = self._ready("send_weights")
        assert run.send_weights is not None
        run.send_weights(engine)

    def role(self, name: str) -> OpenRole:
        """Return another model of the run."""
        return self._ready("role")[2][name]

    def adapter(self) -> Mapping[str, Any] | None:
        """Return the PEFT configuration of the LoRA in training, which is what engines take, if there is one.

        None too where it is trained on low-bit weights: engines have others, and are sent all of them.
        """
        run, *_ = self._ready("adapter")
        config = run.facts.adapter if run.config.tuner.quantize == "none" else None
        return config if config is not None and kind_of(config) == "LORA" else None


@dataclass(frozen=True)
class SampleSets:
    """The samples to train and to evaluate on, with reference log-probabilities where they are kept on disk."""

    train: SampleSet | None
    """None for a stream."""
    validation: SampleSet | None

    @classmethod
    def of(cls, data: PreparedData, mode: Mode) -> SampleSets:
        """Return the samples of the data sets, which wait for their scores where these are kept on disk."""
        if mode == "cached":
            return cls(to_be_scored(data.train), None if data.validation is None else to_be_scored(data.validation))
        return cls(*(None if each is None else each.samples for each in (data.train, data.validation)))


def batch_schedule_of(
    objective: Objective,
    data: PreparedData,
    samples: SampleSets,
    source: HfSource,
    run: OpenedRun,
    model: ModelInTraining,
    comms: Comms,
) -> BatchSchedule:
    """Return the schedule that the objective brings, or that of its data: epoch after epoch, or the stream."""
    layout = BatchLayout.from_config(run.config)
    in_memory = rows_in_memory(layout, objective)

    def default() -> BatchSchedule:
        known = data.stream if samples.train is None else samples.train
        if known is None:
            raise ValueError("there is no training data to plan for")
        return default_schedule(objective, known, layout)

    def batch(step: int, rows: Sequence[Row], data_rank: int, data_size: int) -> Batch:
        return in_memory.batch(step, rows, [sample for row in rows for sample in row], data_rank, data_size)

    context = ScheduleContext(
        config=run.config,
        folder=run.folder,
        topology=run.topology,
        layout=layout,
        objective=objective,
        source=source,
        model=source.folder,
        tokenizer=source.tokenizer,
        data=data,
        samples=samples.train,
        validation=samples.validation,
        comms=comms,
        say=run.say,
        default=default,
        batch=batch,
        forward=model.forward,
        send_weights=model.send_weights,
        roles=model.role_names,
        role=model.role,
        adapter=model.adapter,
    )
    return objective.batch_schedule(context)


def schedule_state(schedule: BatchSchedule) -> dict[str, Any]:
    """Return what a schedule keeps in a checkpoint, under the key that `restore_schedule` reads; mostly nothing."""
    state = dict(schedule.state())
    return {"batch_schedule": state} if state else {}


def restore_schedule(schedule: BatchSchedule, progress: Mapping[str, Any]) -> None:
    """Let a schedule resume from what it kept in a checkpoint."""
    state = progress.get("batch_schedule") or {}
    if state or isinstance(schedule, EpochSchedule):
        schedule.restore(state)

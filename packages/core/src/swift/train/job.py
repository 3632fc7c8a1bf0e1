"""A run that is ready to make its next step: what the loop works with, on one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from swift.checkpoint.manifest import Manifest
from swift.contracts import BatchSchedule, ModelSource, Objective, Run, Topology, TrainState
from swift.data.batch import Batch, MediaReader, check_candidates
from swift.data.pipeline import PreparedData
from swift.data.schedules import BatchLayout
from swift.data.schedules.epochs import EpochSchedule, evaluation_batches
from swift.data.store import SampleSet
from swift.models.media import ProcessorReader
from swift.plugins.hooks import Hooks
from swift.processes.comms import Comms
from swift.processes.watchdog import Watchdog
from swift.train import first_pass, reference
from swift.train.best import BestSoFar
from swift.train.roles import RoleModel


@dataclass
class Job:
    """Everything about a run that steps, evaluations and checkpoints need."""

    run: Run
    hooks: Hooks
    comms: Comms
    source: ModelSource
    objective: Objective
    batch_schedule: BatchSchedule
    data: PreparedData
    validation: SampleSet | None
    """The validation set, with reference log-probabilities where they are kept on disk."""
    state: TrainState
    best: BestSoFar
    reference: reference.Mode
    manifest: Manifest
    """The facts that all checkpoints of this run share; step and position are filled in when saving."""
    watchdog: Watchdog
    resumed_from: Path | None = None
    roles: dict[str, RoleModel] = field(default_factory=dict)
    """Models besides the policy, by name."""

    @property
    def saved_roles(self) -> list[RoleModel]:
        """Return the roles that checkpoints hold: those whose weights change."""
        return [each for each in self.roles.values() if each.role.trained or each.role.follows]

    @property
    def topology(self) -> Topology:
        return self.run.topology

    @property
    def is_main(self) -> bool:
        return self.topology.is_main

    def ready(self, batch: Batch, *, training: bool = False) -> tuple[Batch, Objective]:
        """Return the batch, checked and complete, and the objective with its baseline.

        What is added are candidates, reference log-probabilities and the values of a first pass, which has dropout
        where it precedes a step of `training`.
        """
        batch = replace(
            batch,
            candidates=tuple(self.objective.candidates) or batch.candidates,
            media_reader=self._reader(training=training),
        )
        check_candidates(batch.rows, self.source.config.get_text_config().vocab_size, batch.candidates)
        if self.reference == "adapter":
            batch = reference.with_adapter_off(self.hooks, self.run, self.state, batch)
        objective = self.objective
        if objective.baseline is not None:
            sums = self.hooks.swift_forward(self.run, self.state, batch, objective.baseline).metrics
            means = {name: value / weight for name, (value, weight) in sums.items() if weight}
            objective = objective.with_baseline(means)
        first = objective.first_pass
        if first is not None and not first_pass.is_whole(batch, self.topology):
            seen = self.hooks.swift_forward(self.run, self.state, replace(batch, dropout=training), first)
            batch = first_pass.completed(batch, objective, seen.segments, self.topology, self.comms)
        return batch, objective

    def decode_ahead(self, step: int, batch: Batch) -> float:
        """Begin with the images of a step and of the next one; return how long steps have waited for images.

        Where samples come one after the other (a stream, answers to prompts), the next step is not known yet.
        """
        reader = self.run.media_reader
        if isinstance(reader, ProcessorReader):
            batches = [batch] * self._passes(batch)
            if isinstance(self.batch_schedule, EpochSchedule) and step + 1 < self.run.total_steps:
                batches.append(self.batch_schedule.batch(step + 1, self.topology.data_rank, self.topology.data_size))
            reader.announce(batches)
        return self.waited_for_images()

    def _passes(self, batch: Batch) -> int:
        """Return how often a training step runs the model on its batch: what was decoded is kept from pass to pass."""
        first = self.objective.first_pass
        compared = first is not None and not first_pass.is_whole(batch, self.topology)
        return 1 + (self.reference == "adapter") + (self.objective.baseline is not None) + compared

    def waited_for_images(self) -> float:
        """Return for how many seconds steps have waited for images to be decoded."""
        reader = self.run.media_reader
        decoder = reader.decoder if isinstance(reader, ProcessorReader) else None
        return 0.0 if decoder is None else decoder.seconds

    def _reader(self, *, training: bool) -> MediaReader | None:
        """Return what reads images, naming rows of the data set that is being read."""
        part = self.data.train if training else self.data.validation
        reader = self.run.media_reader
        return reader.naming(part.location) if isinstance(reader, ProcessorReader) and part is not None else reader

    def validation_batches(self) -> Iterator[Batch] | None:
        """Return the validation set in order, or None when there is none."""
        if self.validation is None:
            return None
        return in_order(self.run, self.validation, self.objective)


def _compares_rows(objective: Objective) -> bool:
    return objective.first_pass is not None


def in_order(run: Run, dataset: SampleSet, objective: Objective) -> Iterator[Batch]:
    """Return a data set once, in its own order: for evaluation, and for scoring by a reference model."""
    topology = run.topology
    layout = BatchLayout.for_evaluation(run.config, topology.data_size, compared=_compares_rows(objective))
    return evaluation_batches(dataset, objective, layout, topology.data_rank, topology.data_size)

"""Saving during a run: checkpoints, the links to the last and the best of them, and the export at the end."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from swift.checkpoint.folders import (
    BEST,
    checkpoint_folder,
    link,
    outdated,
    prune,
    set_aside,
    whole_checkpoints,
)
from swift.checkpoint.save import PendingSave, save_checkpoint, wait_for_saves
from swift.checkpoint.writers import weights_only_writer
from swift.contracts import StepRecord
from swift.models.heads import exported
from swift.train.scheduling import schedule_state

if TYPE_CHECKING:
    from swift.checkpoint.storage import StoredTensors
    from swift.contracts import CheckpointWriter
    from swift.train.job import Job


class CheckpointSaver:
    """Saves checkpoints, removes those that are too many, and knows the last and the best."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._pending: tuple[int, PendingSave] | None = None
        """The step of the save in progress, if its writing has begun on every process."""
        self._source_is_known = False
        self._removal: threading.Thread | None = None
        self.last: Path | None = job.resumed_from

    @property
    def best(self) -> Path | None:
        """Return the checkpoint with the best evaluation."""
        step = self._job.best.saved_step
        folder = None if step is None else checkpoint_folder(self._job.run.folder, step)
        return folder if folder is not None and folder.is_dir() else None

    def save(self, record: StepRecord) -> None:
        """Save the state after a step; in the background where the user wants it."""
        job = self._job
        self._settle()
        job.best.saved(record.step, record.evaluation)
        config = job.run.config.checkpoint
        metrics = {"loss": record.result.loss, **{f"eval_{k}": v for k, v in (record.evaluation or {}).items()}}
        manifest = job.manifest.model_copy(
            update={
                "step": record.step,
                "adapter": job.run.facts.adapter,
                "roles": {role.name: role.record() for role in job.saved_roles},
                "metrics": metrics,
                "facts": {
                    "progress": {
                        "best": job.best.to_json(),
                        "epoch": record.epoch,
                        **schedule_state(job.batch_schedule),
                    }
                },
            }
        )
        pending = save_checkpoint(
            job.run.folder,
            record.step,
            fill=self._fill,
            manifest=manifest,
            is_main=job.is_main,
            extra=self._model_weights() if config.model_weights else None,
            asynchronous=config.asynchronous,
            copy_later=job.hooks.capabilities.calls_before_update,
        )
        self._pending = (record.step, pending)
        if pending.done():
            self._settle()

    def export(self) -> None:
        """Write the export that the run was asked to end with, checked against the state that is in memory."""
        job, options = self._job, self._job.run.config.export
        if options.to is None:
            return
        from swift.export.job import ExportJob, installed_exporter
        from swift.export.state import export_state
        from swift.models.source import as_exported

        self._settle()
        export = ExportJob(
            installed_exporter(options.to),
            options.to,
            as_exported(job.source),
            job.run.facts.adapter,
            options,
            options.out or job.run.folder / f"export-{options.to}",
            job.run.say,
            job.run,
            objective=job.run.config.objective.model_dump(mode="json"),
            system=job.run.config.data.system,
        )
        export_state(export, exported(job.hooks.swift_iter_weights(job.run, job.state)), is_main=job.is_main)

    def wait(self) -> None:
        """Wait for work in the background, and raise the error of a save that failed."""
        wait_for_saves(self._job.run.folder)
        self._settle()
        self._join_removal()

    def _fill(self, writer: CheckpointWriter) -> None:
        if not self._job.run.config.checkpoint.optimizer_state:
            writer = weights_only_writer(writer)
        self._job.hooks.swift_save_checkpoint(self._job.run, self._job.state, writer)
        for role in self._job.saved_roles:
            role.save(writer)

    def _model_weights(self) -> Callable[[StoredTensors], None]:
        """Return the function that writes the weights ready to load, perhaps in the background.

        It uses only its arguments.
        """
        from swift.export.precision import export_dtypes
        from swift.export.stored import write_model_weights
        from swift.models.source import as_exported

        source, adapter = as_exported(self._job.source), self._job.run.facts.adapter
        if self._job.is_main and adapter is None and not self._source_is_known:
            # The source keeps what it has to build to answer, and building draws random numbers: not during training.
            export_dtypes(source, "auto")
            self._source_is_known = True
        return partial(write_model_weights, source=source, adapter=adapter)

    def _settle(self) -> None:
        """Finish a completed save: notify observers, move the links, remove old checkpoints."""
        if self._pending is None:
            return
        step, pending = self._pending
        self._pending = None
        self.last = pending.wait()
        job = self._job
        if not job.is_main:
            return
        job.hooks.swift_checkpoint_saved(job.run, step, self.last)
        best = job.best.saved_step
        if best is not None and best in whole_checkpoints(job.run.folder):
            link(job.run.folder, BEST, best)
        if job.run.config.checkpoint.keep is not None:
            self._prune(job.run.config.checkpoint.keep, best)

    def _prune(self, keep: int, best: int | None) -> None:
        """Remove old checkpoints, in the background if saves are: removing gigabytes takes a while."""
        folder = self._job.run.folder
        if not self._job.run.config.checkpoint.asynchronous:
            prune(folder, keep, best)
            return
        self._join_removal()
        doomed = [set_aside(each) for each in outdated(folder, keep, best)]

        def remove() -> None:
            for each in doomed:
                shutil.rmtree(each, ignore_errors=True)  # what stays is removed when the run goes on

        self._removal = threading.Thread(target=remove, name="old checkpoints")
        self._removal.start()

    def _join_removal(self) -> None:
        if self._removal is not None:
            self._removal.join()
            self._removal = None

"""The training loop: one step after the other, evaluating and saving when it is due.

`train` is the whole run on one process: config → data → (setup → wrap → shard) → steps → checkpoints → export.
`steps` is the same for a caller who looks on: it yields a record of every step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swift.contracts import RunSummary, StepRecord
from swift.errors import CheckpointError, SwiftError, TrainingError
from swift.plugins.blame import explained
from swift.processes.signals import graceful_stop
from swift.terminal import waiting
from swift.train.adapter_gradients import FirstUpdate
from swift.train.due import Due
from swift.train.evaluate import can_evaluate, evaluation_of
from swift.train.failures import check_folder, failure_of, folder_is_gone, not_finite, resume_advice
from swift.train.job import Job
from swift.train.memory import peak_memory_gib
from swift.train.prepare import open_job
from swift.train.recomputation import recomputation_note
from swift.train.saving import CheckpointSaver
from swift.train.sums import NonFiniteStep
from swift.train.time_breakdown import StepMeter
from swift.train.training_data import report_data

if TYPE_CHECKING:
    from swift.data.batch import Batch
    from swift.parsing import Parsed


def train(
    parsed: Parsed,
    *,
    rows: Sequence[Any] | None = None,
    validation_rows: Sequence[Any] | None = None,
    pause_at: int | None = None,
) -> RunSummary:
    """Run what `parsed` describes. `rows` and `validation_rows` are data sets that are already in memory.

    `pause_at` ends this session after that step as a signal would: saved, to be resumed later.
    """
    with _open_loop(parsed, rows, validation_rows, pause_at) as loop:
        return loop.run()


def steps(
    parsed: Parsed,
    *,
    rows: Sequence[Any] | None = None,
    validation_rows: Sequence[Any] | None = None,
    pause_at: int | None = None,
) -> Generator[StepRecord, None, None]:
    """Run what `parsed` describes, as `train` does, and yield a record after each step. See `Loop.steps`."""
    with _open_loop(parsed, rows, validation_rows, pause_at) as loop:
        yield from loop.steps()


@contextmanager
def _open_loop(
    parsed: Parsed, rows: Sequence[Any] | None, validation_rows: Sequence[Any] | None, pause_at: int | None
) -> Iterator[Loop]:
    try:
        with open_job(parsed, rows=rows, validation_rows=validation_rows) as job, graceful_stop() as signals:
            yield Loop(job, signals, pause_at)
    except Exception as error:
        failure = explained(error)
        if failure is None or failure is error:
            raise
        raise failure from error


class Loop:
    """The steps of one run, on one process."""

    def __init__(self, job: Job, signals: Sequence[int] = (), pause_at: int | None = None) -> None:
        self.job = job
        self.due = Due(job, signals, pause_at)
        self.saver = CheckpointSaver(job)
        self.summary: RunSummary | None = None
        """What observers are told at the end; set once the run has ended."""
        self._signals = signals
        self._tokens = 0
        self._started = time.monotonic()
        self._meter = StepMeter(job)
        self._first_update = FirstUpdate(job)
        job.watchdog.advice = lambda: resume_advice(job.run.config, self.saver.last)

    def run(self) -> RunSummary:
        """Make all steps that are left, until the last one, a signal, or early stopping."""
        deque(self.steps(), maxlen=0)
        assert self.summary is not None
        return self.summary

    def steps(self) -> Generator[StepRecord, None, None]:
        """Make the steps that are left and yield the record of each, once all that was due after it is done.

        Every process of a run iterates alike. After the last step the run is ended: exported, and its summary told to
        observers. A caller who stops before that (`close()`) leaves a run without an end, whose checkpoints are whole.
        """
        job = self.job
        with ExitStack() as stack:
            stack.callback(self.saver.wait)
            if job.is_main:
                job.hooks.swift_run_start(job.run)
                if (note := recomputation_note(job)) is not None:
                    job.run.say(note)
            try:
                yield from self._each_step()
                self.saver.wait()
                summary = self._summary("stopped" if self.due.stopped else "completed")
                job.watchdog.at("the end", armed=False)
                if not self.due.stopped:
                    self.saver.export()
            except Exception as error:
                failure = failure_of(job, error, self.saver.last)
                self._fail(failure)
                if isinstance(failure, CheckpointError):
                    failure.exit_code = TrainingError.exit_code  # the command was right; training failed
                if failure is error:
                    raise
                raise failure from error
            self._end(summary)

    def _each_step(self) -> Iterator[StepRecord]:
        before = self._evaluate_at_start()
        for step in range(self.job.state.step, self.job.run.total_steps):
            record = self.make_step(step)
            self._first_update.look(record)
            record = self.evaluate_if_due(record)
            record = replace(self._meter.gathered(record), evaluation_before=before)
            before = None
            self.tell_observers(record)
            self.save_if_due(record)
            yield record
            if self.due.end(record):
                break

    def make_step(self, step: int) -> StepRecord:
        """Make one optimizer step, counted from 0, and return what it was."""
        job = self.job
        job.watchdog.at(f"step {step + 1}")
        begin = time.monotonic()
        batch = job.batch_schedule.batch(step, job.topology.data_rank, job.topology.data_size)
        data_seconds = time.monotonic() - begin
        waited = job.decode_ahead(step, batch)
        with self._meter.measuring(begin) as sample:
            ready, objective = job.ready(batch, training=True)
            try:
                of_roles = job.batch_schedule.train_roles(step, batch)
                result = job.hooks.swift_train_step(job.run, job.state, ready, objective)
            except NonFiniteStep as failure:
                self.saver.wait()
                raise not_finite(job, step + 1, failure, self.saver.last) from None
        self._tokens += batch.tokens
        if metrics := {**of_roles, **job.batch_schedule.metrics(step)}:
            result = replace(result, metrics={**result.metrics, **metrics})
        record = StepRecord(
            step=step + 1,
            total_steps=job.run.total_steps,
            epoch=job.batch_schedule.epoch_at(step + 1),
            result=result,
            tokens=batch.tokens,
            padded_tokens=_padded_tokens(batch),
            seconds=time.monotonic() - begin,
            data_seconds=data_seconds + job.waited_for_images() - waited,
            memory_gib=peak_memory_gib(job.topology.device),
        )
        self._meter.note(record, sample)
        return record

    def evaluate_if_due(self, record: StepRecord) -> StepRecord:
        """Evaluate where it is time; return the record with the result."""
        if not (self.due.evaluation(record.step) and can_evaluate(self.job)):
            return record
        evaluation = evaluation_of(self.job, f"after step {record.step}")
        self.job.best.update(record.step, evaluation)
        return replace(record, evaluation=evaluation)

    def _evaluate_at_start(self) -> Mapping[str, float] | None:
        """Evaluate before the first step of this session where `train.eval_on_start` asks for it."""
        job = self.job
        if not (job.run.config.train.eval_on_start and can_evaluate(job)):
            return None
        means = evaluation_of(job, "before the first step")
        values = ", ".join(f"eval_{name.removeprefix('eval_')} {value:.4g}" for name, value in means.items())
        job.run.say(f"Before step {job.state.step + 1}: {values}")
        return means

    def tell_observers(self, record: StepRecord) -> None:
        """Hand the record to the observers, and agree with the other processes on whether the run is stopped."""
        if self.job.is_main:
            check_folder(self.job, record.step)
            self.job.hooks.swift_step_end(self.job.run, record)
        self.due.agree(record.step)

    def save_if_due(self, record: StepRecord) -> None:
        """Save a checkpoint where it is time, or where the run ends early."""
        if not self.due.save(record):
            return
        job = self.job
        job.watchdog.at(f"the checkpoint of step {record.step}")
        check_folder(job, record.step)
        if not self.due.stopped and self.due.no_better(record):
            evaluations = job.run.config.train.early_stopping
            job.run.say(f"Stopping early: {evaluations} evaluations in a row were no better than {job.best}.")
        with waiting(f"saving the checkpoint of step {record.step}"):
            self.saver.save(record)

    def _summary(self, status: str, message: str = "") -> RunSummary:
        return RunSummary(
            status=status,
            steps=self.job.state.step,
            seconds=time.monotonic() - self._started,
            tokens=self._tokens,
            last_checkpoint=self.saver.last,
            best_checkpoint=self.saver.best,
            message=message,
            signal=self._signals[0] if self._signals else None,
        )

    def _fail(self, error: Exception) -> None:
        """Tell observers, whatever state the run is in; the error itself goes on to the user."""
        with suppress(SwiftError):
            self.saver.wait()
        try:
            self._end(self._summary("failed", str(error)))
        except Exception as another:
            if folder_is_gone(self.job):
                return
            self.job.run.say(f"The end of the run could not be recorded either: {another}")

    def _end(self, summary: RunSummary) -> None:
        self.summary = summary
        if self.job.is_main:
            if self.job.data.stream is not None:
                report_data(self.job.run, self.job.data)
            self.job.hooks.swift_run_end(self.job.run, summary)


def _padded_tokens(batch: Batch) -> int:
    """Tokens that go through the model, scaled up from this process's slice."""
    lengths = [len(segment) for row in batch.rows for sample in row for segment in sample.segments]
    if batch.flat or not lengths:
        return batch.tokens
    padded, at = 0, 0
    for start in range(0, len(batch.rows), batch.micro_rows):
        rows = batch.rows[start : start + batch.micro_rows]
        count = sum(len(sample.segments) for row in rows for sample in row)
        padded += count * max(lengths[at : at + count])
        at += count
    return round(batch.tokens * padded / sum(lengths))

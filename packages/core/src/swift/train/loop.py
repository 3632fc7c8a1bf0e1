"""The training loop: one step after the other, evaluating and saving when it is time.

`train` is the whole run on one process: config → data → (setup → wrap → shard) → steps → checkpoints → export.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swift.contracts import RunSummary, StepRecord
from swift.errors import CheckpointError, SwiftError, TrainingError
from swift.plugins.blame import blamed, explained, keep_traceback, words_of
from swift.processes.signals import graceful_stop
from swift.train.evaluate import evaluate
from swift.train.job import Job
from swift.train.memory import peak_memory_gib
from swift.train.prepare import opened, tell_data
from swift.train.run_folder import ARGS_FILE
from swift.train.saving import Keeper
from swift.train.sums import NonFiniteStep

if TYPE_CHECKING:
    from swift.config.parse import Parsed
    from swift.data.batch import Batch


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
    try:
        with opened(parsed, rows=rows, validation_rows=validation_rows) as job, graceful_stop() as signals:
            return Loop(job, signals, pause_at).run()
    except Exception as error:
        failure = explained(error)
        if failure is None or failure is error:
            raise
        raise failure from error


class Loop:
    """The steps of one run, on one process."""

    def __init__(self, job: Job, signals: Sequence[int], pause_at: int | None = None) -> None:
        self.job = job
        self.keeper = Keeper(job)
        self._signals = signals
        self._pause_at = pause_at
        self._tokens = 0
        self._started = time.monotonic()
        job.watchdog.advice = self._go_on

    def run(self) -> RunSummary:
        """Until the last step, a signal, or patience with the evaluation is at its end."""
        job = self.job
        with ExitStack() as stack:
            stack.callback(self.keeper.wait)
            if job.is_main:
                job.hooks.run_start(job.run)
            try:
                stopped = self._steps()
                self.keeper.wait()
                summary = self._summary("stopped" if stopped else "completed")
                job.watchdog.at("the end", armed=False)
                if not stopped:
                    self.keeper.export()
            except Exception as error:
                failure = self._failure(error)
                self._fail(failure)
                if isinstance(failure, CheckpointError):
                    failure.exit_code = TrainingError.exit_code  # the command was right; training failed
                if failure is error:
                    raise
                raise failure from error
            self._end(summary)
            return summary

    def _steps(self) -> bool:
        """Make the steps that are left; True when a signal ended them early."""
        job, config = self.job, self.job.run.config
        for step in range(job.state.step, job.run.total_steps):
            record = self._step(step)
            done = step + 1
            last = done == job.run.total_steps
            if last or self._due(done, config.train.eval_steps):
                record = self._evaluated(record)
            if job.is_main:
                self._check_folder(done)
                job.hooks.step_end(job.run, record)
            stop, *failed = job.comms.each_any([bool(self._signals) or done == self._pause_at, *job.hooks.failed()])
            job.hooks.switch_off(failed, job.run, job.comms)
            stop = stop and not last
            wants_save = self._due(done, config.checkpoint.save_steps) or (last and config.checkpoint.save_last)
            if wants_save or stop:
                job.watchdog.at(f"the checkpoint of step {done}")
                self._check_folder(done)
                self.keeper.save(record)
            if stop:
                return True
            if job.best.exhausted and record.evaluation is not None:
                job.run.say(
                    f"Stopping early: {config.train.early_stopping} evaluations in a row were no better than "
                    f"{job.best}."
                )
                if not wants_save:
                    self.keeper.save(record)
                return False
        return False

    def _step(self, step: int) -> StepRecord:
        job = self.job
        job.watchdog.at(f"step {step + 1}")
        begin = time.monotonic()
        batch = job.plan.batch(step, job.topology.data_rank, job.topology.data_size)
        data_seconds = time.monotonic() - begin
        ready, objective = job.ready(batch)
        try:
            result = job.hooks.train_step(job.run, job.state, ready, objective)
        except NonFiniteStep as failure:
            raise self._not_finite(step, failure) from None
        self._tokens += batch.tokens
        return StepRecord(
            step=step + 1,
            total_steps=job.run.total_steps,
            epoch=job.plan.epoch_at(step + 1),
            result=result,
            tokens=batch.tokens,
            padded_tokens=_padded_tokens(batch),
            seconds=time.monotonic() - begin,
            data_seconds=data_seconds,
            memory_gib=peak_memory_gib(job.topology.device),
        )

    def _due(self, done: int, every: int | None) -> bool:
        """Every so many steps, or at the end of each epoch."""
        if every is not None:
            return done % every == 0
        plan = self.job.plan
        return plan.steps_per_epoch is not None and plan.epoch_at(done).is_integer()

    def _evaluated(self, record: StepRecord) -> StepRecord:
        job = self.job
        batches = job.validation_batches()
        if batches is None:
            return record
        job.watchdog.at(f"the evaluation after step {record.step}")
        evaluation = evaluate(job.hooks, job.run, job.state, batches, job.ready)
        job.best.update(record.step, evaluation)
        return replace(record, evaluation=evaluation)

    def _not_finite(self, step: int, failure: NonFiniteStep) -> TrainingError:
        self.keeper.wait()
        samples = sorted({sample for samples in self.job.comms.gather(failure.sample_ids) for sample in samples})
        if samples:
            data = self.job.data.train
            places = [data.place(sample) if data is not None else str(sample) for sample in samples]
            shown = ", ".join(places[:8]) + (" ..." if len(places) > 8 else "")
            where = f"The loss of these samples is not finite: {shown}."
        else:
            where = "Every sample's own loss is finite: the gradient overflowed."
        return TrainingError(
            f"Step {step + 1} gave loss {failure.loss} and gradient norm {failure.grad_norm}. {where} "
            "The weights are as they were before the step.",
            hint="Lower --learning_rate, look at the samples, or resume from "
            f"{self.keeper.last or 'an earlier checkpoint (none was saved)'}.",
        )

    def _failure(self, error: Exception) -> Exception:
        """What the run ends with: an error that a plugin raised is said with its place in the run."""
        if self._folder_is_gone():
            return self._gone(self.job.state.step)  # whoever wrote first found it out, in words of its own
        blame = None if isinstance(error, SwiftError) else blamed(error)
        if blame is None:
            return error
        job = self.job
        rank = job.run.world.rank
        failure = TrainingError(
            f"Process {rank} failed in {job.watchdog.doing}: {words_of(error)} It was raised by {blame}.",
            hint=self._go_on(),
        )
        failure.traceback_of = error
        keep_traceback(failure, job.run.folder, name=f"traceback-{rank}")
        return failure

    def _folder_is_gone(self) -> bool:
        return not (self.job.run.folder / ARGS_FILE).is_file()

    def _check_folder(self, step: int) -> None:
        """Nothing is written into a folder that is gone: it would be there again, and not be that of this run."""
        if self.job.is_main and self._folder_is_gone():
            raise self._gone(step)

    def _gone(self, step: int) -> TrainingError:
        return TrainingError(
            f"The run's folder {self.job.run.folder} is gone, and its checkpoints with it: it was removed or renamed "
            f"while the run made step {step}.",
            hint="If it was renamed, go on from a checkpoint in it: --resume_from_checkpoint FOLDER",
        )

    def _summary(self, status: str, message: str = "") -> RunSummary:
        return RunSummary(
            status=status,
            steps=self.job.state.step,
            seconds=time.monotonic() - self._started,
            tokens=self._tokens,
            last_checkpoint=self.keeper.last,
            best_checkpoint=self.keeper.best,
            message=message,
            signal=self._signals[0] if self._signals else None,
        )

    def _go_on(self) -> str:
        """What to type after a run that came to nothing."""
        last = self.keeper.last
        return (
            f"Go on from the last checkpoint: --resume_from_checkpoint {last}" if last else "No checkpoint was saved."
        )

    def _fail(self, error: Exception) -> None:
        """Observers learn of it, whatever state the run is in; the error itself goes on to the user."""
        with suppress(SwiftError):
            self.keeper.wait()
        try:
            self._end(self._summary("failed", str(error)))
        except Exception as another:
            if self._folder_is_gone():
                return
            self.job.run.say(f"The end of the run could not be recorded either: {another}")

    def _end(self, summary: RunSummary) -> None:
        if self.job.is_main:
            if self.job.data.stream is not None:
                tell_data(self.job.run, self.job.data)
            self.job.hooks.run_end(self.job.run, summary)


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

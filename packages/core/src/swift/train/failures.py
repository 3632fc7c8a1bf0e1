"""How a run that fails says why: the step, the process, who raised the error, and what to resume from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from swift.errors import SwiftError, TrainingError
from swift.plugins.blame import Blame, blamed, error_line, keep_traceback
from swift.plugins.planners import lacking
from swift.train.memory import peak_memory_gib
from swift.train.run_folder import ARGS_FILE

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift.train.job import Job
    from swift.train.sums import NonFiniteStep

LESS_MEMORY = "Less memory: --gradient_checkpointing true, or a smaller --per_device_train_batch_size or --max_length."


def resume_advice(config: Config, last: Path | None) -> str:
    """Return what to type after a run that failed. `last` is its newest checkpoint."""
    if last is None:
        return "No checkpoint was saved."
    flag = f"--resume_from_checkpoint {last}"
    if config.checkpoint.optimizer_state:
        return f"Resume from the last checkpoint: {flag}"
    return f"Its checkpoints hold weights alone. Start a new run from the last: {flag} --resume_only_model true"


def failure_of(job: Job, error: Exception, last: Path | None) -> Exception:
    """Return the error that the run ends with: one that a plugin raised is given its step and process."""
    if _lacks_file(error) and folder_is_gone(job):
        return _gone(job, job.state.step)  # the component that wrote first has found it out, in words of its own
    blame = None if isinstance(error, SwiftError) else blamed(error)
    if lacks_memory(error):
        return _out_of_memory(job, error, blame, last)
    rank = job.run.world.rank
    if blame is None:
        if isinstance(error, SwiftError):
            keep_traceback(error, job.run.folder, name=f"traceback-{rank}")
        return error
    failure = TrainingError(
        f"Process {rank} failed in {job.watchdog.doing}: {error_line(error)} It was raised by {blame}.",
        hint=resume_advice(job.run.config, last),
    )
    failure.traceback_of = error
    keep_traceback(failure, job.run.folder, name=f"traceback-{rank}")
    return failure


def lacks_memory(error: Exception) -> bool:
    """Return whether an error says that there is no memory left: of a device, or of the machine."""
    of_machine = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in error_line(error)
    return of_machine or isinstance(error, torch.OutOfMemoryError | MemoryError)


def _out_of_memory(job: Job, error: Exception, blame: Blame | None, last: Path | None) -> TrainingError:
    """Return the error of a process without memory: what it had, beside what an installed planner counts."""
    run = job.run
    peak = peak_memory_gib(job.topology.device)
    failure = TrainingError(
        f"Process {run.world.rank} ran out of memory in {job.watchdog.doing}: {error_line(error)} "
        f"It had {peak:.1f} GiB at most until then.{f' It was raised by {blame}.' if blame else ''}",
        hint="\n".join([lacking(run, peak * 2**30) or LESS_MEMORY, resume_advice(run.config, last)]),
    )
    failure.traceback_of = error
    keep_traceback(failure, run.folder, name=f"traceback-{run.world.rank}")
    return failure


def not_finite(job: Job, step: int, failure: NonFiniteStep, last: Path | None) -> TrainingError:
    """Return the error of a step whose loss or gradient is not finite, with the samples at fault. Collective."""
    samples = sorted({sample for samples in job.comms.gather(failure.sample_ids) for sample in samples})
    if samples:
        data = job.data.train
        sources = [data.location(sample) if data is not None else str(sample) for sample in samples]
        shown = ", ".join(sources[:8]) + (" ..." if len(sources) > 8 else "")
        where = f"The loss of these samples is not finite: {shown}."
    else:
        where = "The loss of every sample is finite: the gradient overflowed."
    return TrainingError(
        f"Step {step} gave loss {failure.loss} and gradient norm {failure.grad_norm}. {where} "
        "The weights are those of before the step.",
        hint=f"Lower --learning_rate, or look at the samples. {resume_advice(job.run.config, last)}",
    )


def check_folder(job: Job, step: int) -> None:
    """Raise when the run's folder is gone: written into, it would be there again and not be that of this run."""
    if folder_is_gone(job):
        raise _gone(job, step)


def folder_is_gone(job: Job) -> bool:
    """Return whether the run's folder was removed or renamed. The main process alone knows: it has made the files.

    The others may be in the first step before `ARGS_FILE` is written, or on a machine that sees it late.
    """
    return job.is_main and not (job.run.folder / ARGS_FILE).is_file()


def _lacks_file(error: BaseException | None) -> bool:
    """Return whether an error, or what it was raised from, is about a file or folder that is not there.

    Nothing that the class of an error defines is called: a plugin's own may fail.
    """
    of = BaseException.__dict__
    while error is not None:
        if issubclass(type(error), FileNotFoundError):
            return True
        cause = of["__cause__"].__get__(error)
        error = cause if cause is not None else of["__context__"].__get__(error)
    return False


def _gone(job: Job, step: int) -> TrainingError:
    return TrainingError(
        f"The run's folder {job.run.folder} is gone, and its checkpoints with it: it was removed or renamed "
        f"while the run made step {step}.",
        hint="If it was renamed, resume from a checkpoint in it: --resume_from_checkpoint FOLDER",
    )

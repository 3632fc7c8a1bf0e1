"""Going on from a checkpoint, and the folder that a run writes into, which a resumed run shares with itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from swift.checkpoint.folders import find_checkpoint, whole_checkpoints
from swift.checkpoint.load import check_resume, open_checkpoint
from swift.config.sections import Config
from swift.errors import ConfigError
from swift.train.comms import Comms
from swift.train.run_folder import ARGS_FILE, RunLock, create_run_folder, lock_run_folder, write_run_files

if TYPE_CHECKING:
    from swift.config.parse import Parsed
    from swift.train.job import Job


def checkpoint_to_resume(config: Config, comms: Comms) -> Path | None:
    """The checkpoint that the user names, the same on every process; None for a new run."""
    if config.checkpoint.resume is None:
        return None
    return comms.broadcast(find_checkpoint(config.checkpoint.resume, output=config.logging.output))


def resume(job: Job, folder: Path) -> None:
    """Fill the state from a checkpoint of the same run, whoever wrote it and on however many processes."""
    checkpoint = open_checkpoint(folder)
    check_resume(
        checkpoint.manifest,
        model_fingerprint=job.source.fingerprint,
        data_fingerprint=job.manifest.data_fingerprint,
        seed=job.run.config.train.seed,
        adapter=job.run.adapter_config,
        config=job.manifest.config,
    )
    job.engine.load_checkpoint(job.run, job.state, checkpoint)
    step = checkpoint.facts.step
    job.state.step = step
    progress = checkpoint.manifest["facts"].get("progress", {})
    job.best.restore(progress.get("best", {}))
    job.resumed_from = folder
    before = checkpoint.manifest["schedule"].get("total_steps")
    job.run.say(f"Resuming from {folder} at step {step} of {job.run.total_steps}.")
    if before != job.run.total_steps:
        job.run.say(f"The run was planned for {before} steps and now for {job.run.total_steps}: its schedule changes.")
    if step >= job.run.total_steps:
        raise ConfigError(
            f"{folder.name} is the end of its run: all {job.run.total_steps} steps are made.",
            hint="Raise --max_steps or --num_train_epochs to train further.",
        )


def claim_folder(job: Job, parsed: Parsed) -> tuple[Path, RunLock | None]:
    """The run's folder, made by the main process; a resumed run goes on in its own unless later steps lie there."""
    run = job.run
    folder, lock, problem = run.folder, None, None
    if job.is_main:
        try:
            folder = _folder_of(job)
            lock = lock_run_folder(folder)
            write_run_files(
                folder,
                run.config,
                parsed.backend_options,
                parsed.objective_options,
                run.plugins,
                {"versions": job.manifest.versions, "processes": run.world.size},
            )
            if job.data.validation is not None:
                job.data.validation.write_rows(folder / "val_dataset.jsonl")
        except ConfigError as error:
            problem = error
    folder, failure = job.comms.broadcast((folder, problem and (problem.message, problem.hint)))
    if failure:
        raise ConfigError(failure[0], hint=failure[1])
    return folder, lock


def _folder_of(job: Job) -> Path:
    config = job.run.config
    if job.resumed_from is not None:
        own = job.resumed_from.parent
        later = [step for step in whole_checkpoints(own) if step > job.state.step]
        if (own / ARGS_FILE).is_file() and not later:
            return own
        if later:
            job.run.say(f"{own} holds later checkpoints, which stay as they are: this run gets a folder of its own.")
    return create_run_folder(config, config.model.path or "model")

"""Resuming from a checkpoint, and claiming the folder that a run writes into, which a resumed run keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.checkpoint.coordination import agree
from swift.checkpoint.copies import bring_back
from swift.checkpoint.folders import clean_stale, find_checkpoint, last_checkpoint, whole_checkpoints
from swift.checkpoint.load import check_resume, facts_of, open_checkpoint
from swift.config.sections import Config
from swift.errors import CheckpointError, ConfigError, SwiftError
from swift.plugins.discover import list_plugins
from swift.plugins.load import load_optimizer
from swift.processes.comms import Comms
from swift.processes.group import elastic_launcher
from swift.terminal import relative
from swift.train.run_folder import (
    ARGS_FILE,
    RunClaim,
    check_run_files,
    claim_new_folder,
    folder_of_name,
    lock_run_folder,
    named_run_folder,
    run_of_launcher,
    write_run_files,
)
from swift.train.sample_file import write_samples
from swift.train.scheduling import restore_schedule

if TYPE_CHECKING:
    from swift.contracts import OpenedRun
    from swift.train.job import Job

PATIENCE = 120.0
"""Seconds within which the processes of a run that is started again must have ended."""
_runs = 0
"""How many runs this process has begun: a script may train several, and all of them anew when it is restarted."""


@dataclass(frozen=True)
class StartPoint:
    """The point that a run starts from, the same on every process."""

    checkpoint: Path | None = None
    """The checkpoint to resume from; None for a new run."""
    folder: Path | None = None
    """The folder of the same run, when it was started before."""
    launchers: tuple[str, ...] = ()
    """Launchers that may restart these processes by themselves."""


def find_start(config: Config, comms: Comms) -> StartPoint:
    """Find where to start: the user's checkpoint, or for 'auto' and elastic restarts the run's own last one."""
    launchers = _launchers_of_next_run(comms)
    named = config.checkpoint.resume
    auto = named == "auto" and not Path("auto").exists()
    model = config.model.path or "model"
    if auto and config.checkpoint.copy_to is not None and config.logging.run_name is not None:
        lost = folder_of_name(config, model)
        if not any(comms.gather(bool(whole_checkpoints(lost)))):
            _bring_back_together(config, lost, comms)
    own = named_run_folder(config, model) if auto else None
    if own is None and launchers and comms.rank == 0:
        own = run_of_launcher(config.logging.output, launchers)
    own = comms.broadcast(own)
    checkpoint = comms.broadcast(last_checkpoint(own) if own is not None and comms.rank == 0 else None)
    if checkpoint is not None or named is None or auto:
        return StartPoint(checkpoint, own, launchers)
    checkpoint = comms.broadcast(find_checkpoint(named, output=config.logging.output))
    return StartPoint(checkpoint, own, launchers)


def _launchers_of_next_run(comms: Comms) -> tuple[str, ...]:
    """Return the launchers that may start these processes again, each with the number of the run that begins now."""
    global _runs
    _runs += 1
    found = {each for each in comms.gather(elastic_launcher()) if each is not None}
    return tuple(f"{each} run {_runs}" for each in sorted(found))


def _bring_back_together(config: Config, folder: Path, comms: Comms) -> None:
    """Copy a run's newest checkpoint from its URL to every machine; what goes wrong on one is raised on all."""
    problem: SwiftError | None = None
    try:
        bring_back(config, folder)
    except SwiftError as error:
        problem = error
    agree(comms, problem)


def check_resumable(checkpoint: Path, config: Config) -> None:
    """Refuse a checkpoint whose optimizer is not this run's, or that has no state of one, before anything is read."""
    saved = facts_of(checkpoint).config
    if _saved(saved, "checkpoint", "optimizer_state") is False:
        raise CheckpointError(
            f"{checkpoint} holds weights without the optimizer's state (checkpoint.optimizer_state was off).",
            hint=f"Start a new run from its weights: --resume_from_checkpoint {checkpoint} --resume_only_model true",
        )
    optimizer = _saved(saved, "optim", "name")
    if optimizer is not None and optimizer != config.optim.name and not _same_slots(optimizer, config.optim.name):
        raise CheckpointError(
            f"{checkpoint} was saved with the optimizer {optimizer}, and this run's is {config.optim.name}: the state "
            "of one means nothing to the other.",
            hint=f"Type --optim.name {optimizer}, or start a new run from its weights: --resume_from_checkpoint "
            f"{checkpoint} --resume_only_model true",
        )


def _same_slots(one: str, other: str) -> bool:
    """Return whether two optimizers keep the same state in checkpoints, as AdamW does in 32 and in 8 bits."""
    if one not in {entry.name for entry in list_plugins("swift.optimizers") if entry.allowed}:
        return False
    first, second = (load_optimizer(name).object.slots for name in (one, other))
    return set(first) == set(second)


def settle_keep(config: Config, checkpoint: Path | None) -> Config:
    """Let a run that was told to keep all its checkpoints keep them when it resumes without that flag."""
    if checkpoint is None or "keep" in config.checkpoint.model_fields_set:
        return config
    before: Any = facts_of(checkpoint).config.get("checkpoint") or {}
    if before.get("keep", ...) is not None:
        return config
    return config.changed(checkpoint={"keep": None})


def _saved(config: Mapping[str, Any], section: str, key: str) -> Any:
    """Return a setting that a checkpoint was saved with; None where it does not say."""
    return (config.get(section) or {}).get(key)


def resume(job: Job, folder: Path, *, again: bool) -> None:
    """Fill the state from a checkpoint of the same run, whoever wrote it and on however many processes.

    `again`: the same command once more, and the run may have come to its end before.
    """
    checkpoint = open_checkpoint(folder)
    check_resume(
        checkpoint.manifest,
        model_fingerprint=job.source.fingerprint,
        data_fingerprint=job.manifest.data_fingerprint,
        seed=job.run.config.train.seed,
        adapter=job.run.facts.adapter,
        config=job.manifest.config,
    )
    job.hooks.swift_load_checkpoint(job.run, job.state, checkpoint)
    step = checkpoint.facts.step
    job.state.step = step
    for role in job.saved_roles:
        role.load(checkpoint)
    others = sorted(checkpoint.facts.roles.keys() - job.roles.keys())
    if others:
        job.run.say(f"{folder} also holds {', '.join(others)}, which this run does not have: left out.")
    progress = checkpoint.manifest["facts"].get("progress", {})
    job.best.restore(progress.get("best", {}))
    restore_schedule(job.batch_schedule, progress)
    job.resumed_from = folder
    before = checkpoint.manifest["schedule"].get("total_steps")
    job.run.say(f"Resuming from {relative(folder)} at step {step} of {job.run.total_steps}.")
    if before not in (None, job.run.total_steps):  # an imported checkpoint may not know
        job.run.say(f"The run was planned for {before} steps and now for {job.run.total_steps}: its schedule changes.")
    if step >= job.run.total_steps and not again:
        raise ConfigError(
            f"{folder.name} is the end of its run: all {job.run.total_steps} steps are made.",
            hint="Raise --max_steps or --num_train_epochs to train further.",
        )


def claim_folder(run: OpenedRun, comms: Comms, start: StartPoint) -> tuple[Path, RunClaim | None]:
    """Make and lock the run's folder on the main process; return it everywhere, and the claim there.

    A resumed run goes on in its own folder unless later steps lie there.
    """
    claim: RunClaim | None = None
    problem: SwiftError | None = None
    if comms.rank == 0:
        try:
            claim = _claim(run, start)
            check_run_files(claim.folder)
            clean_stale(claim.folder)
        except SwiftError as error:
            problem = error
    try:
        agree(comms, problem)
    except SwiftError:
        if claim is not None:
            claim.discard()
        raise
    return comms.broadcast(claim and claim.folder) or run.folder, claim


def describe_run(job: Job, start: StartPoint) -> None:
    """Write into the run's folder what it is, before its first step."""
    if not job.is_main:
        return
    run = job.run
    write_run_files(
        run.folder,
        run.config,
        run.plugins,
        {
            "versions": job.manifest.versions,
            "processes": run.world.size,
            "launchers": list(start.launchers),
        },
    )
    write_samples(job)
    if job.data.validation is not None:
        job.data.validation.write_rows(run.folder / "val_dataset.jsonl")


def _claim(run: OpenedRun, start: StartPoint) -> RunClaim:
    if start.folder is not None:
        # A process of the same run that its launcher has not ended yet still holds the folder.
        return RunClaim(start.folder, lock_run_folder(start.folder, patience=PATIENCE))
    own = None if start.checkpoint is None else _own_folder(run, start.checkpoint)
    if own is not None:
        return RunClaim(own, lock_run_folder(own))
    return claim_new_folder(run.config, run.config.model.path or "model")


def _own_folder(run: OpenedRun, checkpoint: Path) -> Path | None:
    """Return the folder that a resumed run continues in; None where it gets a new one."""
    own = checkpoint.parent
    if _names_other_output(run.config, own):
        return None
    step = facts_of(checkpoint).step
    if any(saved > step for saved in whole_checkpoints(own)):
        run.say(f"{relative(own)} holds later checkpoints, which stay as they are: this run gets a folder of its own.")
        return None
    return own if (own / ARGS_FILE).is_file() else None


def _names_other_output(config: Config, own: Path) -> bool:
    """Return whether the user names an output that the resumed run does not lie in.

    Its own may be read-only, or full.
    """
    named = "output" in config.logging.model_fields_set
    return named and config.logging.output.absolute().resolve() not in own.resolve().parents

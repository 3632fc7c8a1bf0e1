"""From a parsed command to everything that the loop needs, in the order in which a mistake is found cheapest."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from swift.checkpoint import find_checkpoint
from swift.checkpoint.load import Checkpoint, check_resume, open_checkpoint
from swift.checkpoint.manifest import Manifest, read_manifest
from swift.config.sections import Config
from swift.contracts import Objective, Run, Topology, TrainState
from swift.data.pipeline import PreparedData, prepare_data
from swift.data.sampler import BatchPlan, Plan, evaluation_batches
from swift.data.store import SampleSet, hash_of
from swift.data.streaming import StreamingPlan
from swift.errors import ConfigError
from swift.launch import current_world
from swift.models.precision import resolve_dtype
from swift.models.source import open_source
from swift.optim.schedule import Schedule
from swift.plugins.facade import Engine, open_engine
from swift.plugins.fingerprint import compare_fingerprints, fingerprint
from swift.plugins.load import load_backend, load_objective, load_observers
from swift.train import reference
from swift.train.best import BestSoFar
from swift.train.comms import Comms
from swift.train.run_folder import create_run_folder, lock_run_folder, write_run_files

if TYPE_CHECKING:
    from swift.config.parse import Parsed
    from swift.contracts import ModelSource
    from swift.data.batch import Batch


@dataclass
class Job:
    """A run that is ready to make its next step, on one process."""

    run: Run
    engine: Engine
    comms: Comms
    source: ModelSource
    objective: Objective
    plan: Plan
    data: PreparedData
    validation: SampleSet | None
    """The validation set, with reference log-probabilities where they are kept on disk."""
    state: TrainState
    best: BestSoFar
    reference: reference.Mode
    manifest: Manifest
    """What every checkpoint of this run says alike; step and position are filled in when saving."""
    resumed_from: Path | None = None

    @property
    def topology(self) -> Topology:
        assert self.run.topology is not None
        return self.run.topology

    @property
    def is_main(self) -> bool:
        return self.topology.is_main

    def ready(self, batch: Batch) -> tuple[Batch, Objective]:
        """The batch with reference log-probabilities, and the objective with its baseline, where they are needed."""
        if self.reference == "adapter":
            batch = reference.with_adapter_off(self.engine, self.run, self.state, batch)
        objective = self.objective
        if objective.baseline is None:
            return batch, objective
        sums = self.engine.forward(self.run, self.state, batch, objective.baseline).metrics
        return batch, objective.given({name: value / weight for name, (value, weight) in sums.items() if weight})

    def validation_batches(self) -> Iterator[Batch] | None:
        """The validation set in order, or None when there is none."""
        if self.validation is None:
            return None
        return _in_order(self.run, self.validation, self.objective)


@contextmanager
def opened(
    parsed: Parsed, *, rows: Sequence[Any] | None = None, validation_rows: Sequence[Any] | None = None
) -> Iterator[Job]:
    """A job, taken down again whatever happens."""
    config = parsed.config
    engine = open_engine(load_backend(config.backend.name), observers=load_observers(config.logging.report_to))
    world = current_world()
    run = Run(
        config=config,
        backend_options=parsed.backend_options,
        folder=config.logging.output,
        world=world,
        say=print_line if world.rank == 0 else _say_nothing,
        plugins=engine.versions,
    )
    engine.check_plan(run)
    comms: Comms | None = None
    lock = None
    try:
        run.topology = engine.setup(run)
        comms = Comms()
        compare_fingerprints(fingerprint(engine.plugins), comms.gather)
        job = _prepare(parsed, run, engine, comms, rows, validation_rows)
        _check_evaluation(job)
        run.folder, lock = _claim_folder(job, parsed)
        yield job
    finally:
        if lock is not None:
            lock.release()
        if comms is not None:
            comms.close()
        engine.teardown(run)


def _prepare(
    parsed: Parsed,
    run: Run,
    engine: Engine,
    comms: Comms,
    rows: Sequence[Any] | None,
    validation_rows: Sequence[Any] | None,
) -> Job:
    assert run.topology is not None
    _check_export(run.config)
    checkpoint = _checkpoint_to_resume(run.config, comms)
    config = run.config = _with_global_batch(run.config, checkpoint, run.topology.data_size)
    _seed(config.train.seed)
    # Kinds of precision that this machine lacks are refused before anything is read.
    resolve_dtype(config.model.dtype, run.topology.device)

    source = open_source(config.model, say=run.say, seed=config.train.seed)
    objective: Objective = load_objective(config.objective.name).object(parsed.objective_options)
    data = prepare_data(
        config.data,
        source.tokenizer,
        encoding=objective.encoding,
        seed=config.train.seed,
        say=run.say,
        rows=rows,
        validation_rows=validation_rows,
        barrier=comms.barrier,
        is_main=run.topology.is_main,
    )
    if data.stream is None:
        tell_data(run, data)
    train = None if data.train is None else data.train.samples
    validation = None if data.validation is None else data.validation.samples
    plan = _plan(config, objective, train, data)
    run.total_steps = plan.total_steps
    run.schedule = Schedule.from_config(config.optim, config.learning_rate, plan.total_steps)

    state = engine.shard(run, engine.wrap_model(run, source))
    mode = reference.reference_mode(objective, getattr(parsed.objective_options, "reference", "auto"), config)
    if mode == "cached":
        scores = reference.ScoreCache(run, engine, comms, state, source.fingerprint)
        train = scores.applied(train, lambda dataset: _in_order(run, dataset, objective))
        if validation is not None:
            validation = scores.applied(validation, lambda dataset: _in_order(run, dataset, objective))
        plan = _plan(config, objective, train, data)

    job = Job(
        run=run,
        engine=engine,
        comms=comms,
        source=source,
        objective=objective,
        plan=plan,
        data=data,
        validation=validation,
        state=state,
        best=BestSoFar.from_config(config.train),
        reference=mode,
        manifest=_manifest(run, source, data, plan),
    )
    if checkpoint is not None:
        _resume(job, checkpoint)
    return job


def _check_export(config: Config) -> None:
    """An export that could not be written is refused before it has been trained for."""
    from swift.export.run import check_destination

    options = config.export
    if options.to is not None and options.out is not None:
        check_destination(options.out, options, out="--export.out", exist_ok="--export.exist_ok true")


def _checkpoint_to_resume(config: Config, comms: Comms) -> Path | None:
    if config.checkpoint.resume is None:
        return None
    return comms.broadcast(find_checkpoint(config.checkpoint.resume, output=config.logging.output))


def _with_global_batch(config: Config, checkpoint: Path | None, data_size: int) -> Config:
    """Settle how many rows make a global batch; a resumed run keeps its own, on however many processes."""
    train = config.train
    rows = train.global_batch
    if rows is None and checkpoint is not None:
        rows = read_manifest(checkpoint).rows_per_step
    if rows is None:
        rows = train.micro_batch * train.accumulation * data_size
    if rows % data_size:
        raise ConfigError(
            f"{rows} rows per optimizer step cannot be dealt to {data_size} processes evenly.",
            hint=f"Type --train.global_batch {-(-rows // data_size) * data_size}, or change the number of processes.",
        )
    share = rows // data_size
    settled = {"global_batch": rows, "micro_batch": min(train.micro_batch, share)}
    settled["accumulation"] = -(-share // settled["micro_batch"])
    return config.model_copy(update={"train": train.model_copy(update=settled)})


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def tell_data(run: Run, data: PreparedData) -> None:
    """Say what became of the data set; of a stream that is known at the end."""
    for line in data.report.lines():
        run.say(line)
    run.facts["data"] = f"{data.report.samples:,} samples, {data.report.tokens:,} tokens"
    run.facts["unusable_samples"] = {
        reason: {"count": rejected.count, "first": f"{rejected.place}: {rejected.detail}"}
        for reason, rejected in data.report.rejected.items()
    }


def _plan(config: Config, objective: Objective, train: SampleSet | None, data: PreparedData) -> Plan:
    assert config.train.global_batch is not None
    layout: dict[str, Any] = {
        "global_rows": config.train.global_batch,
        "micro_rows": config.train.micro_batch,
        "seed": config.train.seed,
        "max_steps": config.train.max_steps,
        "shuffle": config.data.shuffle,
        "packing": config.data.packing,
        "flat": config.data.packing or config.data.padding_free,
        "max_length": config.data.max_length,
    }
    if train is not None:
        return BatchPlan(train, objective, epochs=config.train.epochs, **layout)
    assert data.stream is not None
    stream = StreamingPlan(data.stream, objective, **layout)
    stream.begin()
    return stream


def _in_order(run: Run, dataset: SampleSet, objective: Objective) -> Iterator[Batch]:
    assert run.topology is not None
    config = run.config
    per_process = config.train.eval_batch or config.train.micro_batch
    return evaluation_batches(
        dataset,
        objective,
        rows=per_process * run.topology.data_size,
        micro_rows=per_process,
        data_rank=run.topology.data_rank,
        data_size=run.topology.data_size,
        flat=config.data.padding_free,
        packing=config.data.packing,
        max_length=config.data.max_length,
    )


def _data_fingerprint(config: Config, data: PreparedData) -> str:
    if data.train is not None:
        return data.train.samples.fingerprint
    # A stream is known by its name alone until it is read.
    return f"stream-{hash_of(config.data.model_dump_json(exclude={'cache', 'workers', 'validation'}))}"


def _manifest(run: Run, source: ModelSource, data: PreparedData, plan: Plan) -> Manifest:
    config, topology = run.config, run.topology
    assert topology is not None
    assert config.train.global_batch is not None
    return Manifest(
        step=0,
        rows_per_step=config.train.global_batch,
        seed=config.train.seed,
        model_fingerprint=source.fingerprint,
        data_fingerprint=_data_fingerprint(config, data),
        backend=config.backend.name,
        config=config.model_dump(mode="json"),
        plan={"world": topology.world.size, **topology.layout},
        schedule={"total_steps": plan.total_steps, "peak": config.learning_rate, "shape": config.optim.schedule},
        plugins=dict(run.plugins),
    )


def _resume(job: Job, folder: Path) -> None:
    """Fill the state from a checkpoint of the same run, whoever wrote it and on however many processes."""
    checkpoint: Checkpoint = open_checkpoint(folder)
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


def _check_evaluation(job: Job) -> None:
    """Find out now what would else be found out at the first evaluation, or never."""
    train, batches = job.run.config.train, job.validation_batches()
    if batches is None:
        if train.early_stopping is not None:
            raise ConfigError(
                "train.early_stopping waits for better evaluations, and there is no validation set.",
                hint="Name one with --val_dataset, or hold a part out: --split_dataset_ratio 0.05",
            )
        return
    if job.best.metric != "loss":
        batch, objective = job.ready(next(batches))
        result = job.engine.forward(job.run, job.state, batch, objective)
        job.best.check({"loss", *result.metrics})
    save_steps = job.run.config.checkpoint.save_steps
    if save_steps and train.eval_steps and save_steps % train.eval_steps:
        job.run.say(
            f"The best checkpoint is chosen among steps that are evaluated and saved: make save_steps ({save_steps}) "
            f"a multiple of eval_steps ({train.eval_steps}) to choose among all that are saved."
        )


def _claim_folder(job: Job, parsed: Parsed) -> tuple[Path, Any]:
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
        from swift.checkpoint.folders import whole_checkpoints
        from swift.train.run_folder import ARGS_FILE

        own = job.resumed_from.parent
        later = [step for step in whole_checkpoints(own) if step > job.state.step]
        if (own / ARGS_FILE).is_file() and not later:
            return own
        if later:
            job.run.say(f"{own} holds later checkpoints, which stay as they are: this run gets a folder of its own.")
    return create_run_folder(config, config.model.path or "model")


def print_line(text: str) -> None:
    """A line for the user, above a progress bar if there is one."""
    print(text, flush=True)  # noqa: T201 - the one place that writes to the terminal


def _say_nothing(_: str) -> None:
    pass

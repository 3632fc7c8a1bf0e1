"""From a parsed command to everything that the loop needs, in the order in which a mistake is found cheapest."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from swift.checkpoint.coordination import close_comms
from swift.checkpoint.load import facts_of
from swift.checkpoint.manifest import Manifest
from swift.config.incompatibilities import uneven_batch
from swift.config.sections import Config
from swift.contracts import (
    BatchSchedule,
    ModelRole,
    Objective,
    OpenedRun,
    RequestedRun,
    Run,
    fitting_roles,
)
from swift.data.pipeline import PreparedData, media_kinds
from swift.data.store import ReferencedSamples, hash_of
from swift.errors import about
from swift.models.heads import exported
from swift.models.low_bit import adapters_as_trained, as_trained
from swift.models.media import ProcessorReader
from swift.models.media_processor import MediaProcessor
from swift.models.precision import resolve_dtype
from swift.models.source import as_exported, open_source
from swift.optim.schedule import Schedule
from swift.parsing.tasks import CAUSAL_LM
from swift.plugins.blame import explained
from swift.plugins.fingerprint import compare_fingerprints, fingerprint
from swift.plugins.hooks import Hooks, open_hooks
from swift.plugins.load import load_backend, observers_of
from swift.processes.comms import Comms
from swift.processes.group import current_world
from swift.processes.watchdog import Watchdog
from swift.terminal import print_line, relative, say_nothing, waiting
from swift.train.arithmetic import arithmetic
from swift.train.best import BestSoFar, settle_best
from swift.train.cadence import settle_intervals
from swift.train.data_driven_initialization import starts_from_data
from swift.train.evaluate import check_evaluation
from swift.train.job import Job, in_order
from swift.train.reference import Mode, ScoreCache, reference_mode
from swift.train.resume import (
    StartPoint,
    check_resumable,
    claim_folder,
    describe_run,
    find_start,
    resume,
    settle_keep,
)
from swift.train.roles import check_roles, check_vocabularies, open_role, role_sources
from swift.train.run_folder import RunClaim
from swift.train.scheduling import (
    ModelInTraining,
    SampleSets,
    batch_schedule_of,
)
from swift.train.send_weights import send_weights
from swift.train.training_data import check_encoder, check_positions, open_data

if TYPE_CHECKING:
    from swift.contracts import InferenceEngine, ModelSource, TrainState, WeightStream
    from swift.models.source import HfSource
    from swift.parsing import Parsed


@dataclass(frozen=True)
class Setup:
    """A run whose processes have met, and what its preparation uses."""

    parsed: Parsed
    run: OpenedRun
    hooks: Hooks
    comms: Comms
    start: StartPoint
    watchdog: Watchdog
    at_end: ExitStack
    """What is to be called when the run is over, and after errors."""


@dataclass(frozen=True)
class OpenedModel:
    """The model's files, without weights, and what they decide."""

    setup: Setup
    source: HfSource
    objective: Objective
    """For the model's tokenizer."""
    roles: tuple[ModelRole, ...]
    role_sources: Mapping[str, ModelSource]
    images: MediaProcessor | None
    """Prepares images for a model that has an encoder of them."""


@dataclass(frozen=True)
class OpenedData:
    """The data sets, encoded for the model."""

    data: PreparedData
    objective: Objective
    """For the training set."""
    media_reader: ProcessorReader | None
    reference: Mode
    samples: SampleSets


@dataclass(frozen=True)
class ScheduledRun:
    """A run whose steps are known: its configuration is final."""

    run: Run
    schedule: BatchSchedule
    model: ModelInTraining


@contextmanager
def open_job(
    parsed: Parsed,
    *,
    rows: Sequence[Any] | None = None,
    validation_rows: Sequence[Any] | None = None,
    roles: Sequence[ModelRole] = (),
) -> Iterator[Job]:
    """Make a run ready for its first step, and take it down again whatever happens.

    `rows` and `validation_rows` are data sets in memory, used instead of those that the configuration names. `roles`
    are models that the run holds besides its policy, opened after it.
    """
    with parsed.naming_sources():
        config = parsed.config
        hooks = open_hooks(load_backend(config.backend.name), observers=observers_of(config))
        world = current_world()
        run: RequestedRun = RequestedRun(
            config=config,
            backend_options=parsed.backend_options,
            folder=config.logging.output,
            world=world,
            say=print_line if world.rank == 0 else say_nothing,
            plugins=hooks.versions,
        )
        check_roles(roles, hooks, config)
        hooks.swift_check_layout(run)
        comms: Comms | None = None
        watchdog: Watchdog | None = None
        claim: RunClaim | None = None
        began = False
        try:
            with waiting(f"Starting the {config.backend.name} backend"):
                run = opened = run.opened(hooks.swift_setup(run))
            comms = Comms()
            compare_fingerprints(fingerprint(hooks.plugins), comms.gather)
            limit = timedelta(minutes=config.train.timeout_minutes)
            watchdog = Watchdog(world, limit, comms.broadcast, folder=run.folder)
            start = find_start(config, comms)
            folder, claim = claim_folder(opened, comms, start)
            run = opened = replace(opened, folder=folder)
            watchdog.folder = folder
            with arithmetic(config.train, opened.topology.device, run.say), _closed_at_end(run) as at_end:
                setup = Setup(parsed, opened, hooks, comms, start, watchdog, at_end)
                job = _prepare(setup, roles, rows, validation_rows)
                check_evaluation(job)
                describe_run(job, start)
                began = True
                yield job
        finally:
            if claim is not None:
                claim.lock.release() if began else claim.discard()
            if watchdog is not None:
                watchdog.close(in_order=sys.exc_info()[0] is None)
            close_comms()
            if comms is not None:
                comms.close()
            _finish(run, lambda: hooks.swift_teardown(run))


@contextmanager
def _closed_at_end(run: RequestedRun) -> Iterator[ExitStack]:
    stack = ExitStack()
    try:
        yield stack
    finally:
        _finish(run, stack.close)


def _finish(run: RequestedRun, undo: Callable[[], object]) -> None:
    """Leave nothing behind; what goes wrong with it must not hide why the run failed."""
    if sys.exc_info()[0] is None:
        undo()
        return
    try:
        undo()
    except Exception as error:
        run.say(f"{explained(error) or error}")


def _prepare(
    setup: Setup, roles: Sequence[ModelRole], rows: Sequence[Any] | None, validation_rows: Sequence[Any] | None
) -> Job:
    """Take the steps to a job, in the order in which a mistake is found cheapest."""
    settled = settle_start(setup)
    opened = open_model(settled, roles)
    data = open_training_data(opened, rows, validation_rows)
    scheduled = make_schedule(opened, data)
    return load(opened, data, scheduled)


def settle_start(setup: Setup) -> Setup:
    """Settle what the checkpoint and the processes decide, and refuse what this machine lacks: nothing is read yet."""
    config, start, topology = setup.run.config, setup.start, setup.run.topology
    _check_export(config)
    if start.checkpoint is not None:
        check_resumable(start.checkpoint, config)
    config = settle_keep(settle_batch(config, start.checkpoint, topology.data_size), start.checkpoint)
    _seed(config.train.seed)
    resolve_dtype(config.model.dtype, topology.device)
    return replace(setup, run=replace(setup.run, config=config))


def open_model(setup: Setup, added: Sequence[ModelRole]) -> OpenedModel:
    """Open the files of the model and of other models of the run, and make the objective for them."""
    run, hooks = setup.run, setup.hooks
    with waiting(f"Opening {run.config.model.path}"), about("model.path"):
        source = open_source(run.config.model, say=run.say, seed=run.config.train.seed)
    hooks.swift_check_model(run, source.config)
    if extra := source.extra_names():
        run.say(
            f"{len(extra)} weights in {source.folder} are not trained, and exports keep them: "
            f"{source.config.model_type} has no modules for them in transformers. First: {extra[0]}"
        )
    elif unused := source.unused_names:
        run.say(f"{len(unused)} weights in {source.folder} are not part of the model: left out. First: {unused[0]}")
    config = settle_padding(run.config, source, hooks.capabilities.features, run.topology.device)
    config = config.changed(model={"pooling": source.pooling})
    run = replace(run, config=config)
    objective = setup.parsed.objective.for_model(config.model).for_tokenizer(source.tokenizer)
    objective.check_config(source.config)
    requested = fitting_roles(objective.roles(config), hooks.capabilities.roles)
    roles = (*added, *requested)
    check_roles(roles, hooks, config)
    sources = role_sources(requested, run, hooks)
    check_vocabularies(sources, source)
    sources |= role_sources(added, run, hooks)
    images = None if source.processor is None else MediaProcessor(source.processor, config.data)
    return OpenedModel(replace(setup, run=run), source, objective, roles, sources, images)


def open_training_data(
    opened: OpenedModel, rows: Sequence[Any] | None, validation_rows: Sequence[Any] | None
) -> OpenedData:
    """Read, encode and check the data sets."""
    setup, source, images = opened.setup, opened.source, opened.images
    run, objective = setup.run, opened.objective
    data = open_data(
        run,
        setup.hooks.capabilities,
        setup.comms,
        source.tokenizer,
        objective.encoding,
        rows,
        validation_rows,
        images=images,
    )
    reader = None
    if images is not None and (kinds := media_kinds(data)):
        reader = ProcessorReader.of(source, images, run.config.data, kinds)
        setup.at_end.callback(reader.close)
    check_encoder(run.config, source, has_media=reader is not None)
    check_positions(run, source.config, data)
    objective = objective.for_training_set(None if data.train is None else data.train.samples, run.say)
    mode = reference_mode(objective, getattr(run.config.objective, "reference", "auto"), run.config)
    return OpenedData(data, objective, reader, mode, SampleSets.of(data, mode))


def make_schedule(opened: OpenedModel, data: OpenedData) -> ScheduledRun:
    """Make the schedule of batches, which decides the number of steps; the run's configuration is final then."""
    setup = opened.setup
    model = ModelInTraining(setup.hooks, (role.name for role in opened.roles))
    schedule = batch_schedule_of(data.objective, data.data, data.samples, opened.source, setup.run, model, setup.comms)
    setup.at_end.callback(schedule.close)
    config = settle_best(settle_intervals(setup.run.config, schedule), schedule.evaluation_metrics)
    planned = Schedule.from_config(config.optim, config.learning_rate, schedule.total_steps)
    run = replace(setup.run, config=config).prepared(
        schedule.total_steps, lambda step: schedule.learning_rate(step, planned(step)), data.media_reader
    )
    return ScheduledRun(run, schedule, model)


def load(opened: OpenedModel, data: OpenedData, scheduled: ScheduledRun) -> Job:
    """Load all models of the run, score the data by the reference if needed, and resume from a checkpoint."""
    setup, source, objective = opened.setup, opened.source, data.objective
    run, schedule, start = scheduled.run, scheduled.schedule, setup.start
    if start.checkpoint is None:
        train = None if data.data.train is None else data.data.train.samples
        run.adapter_start.update(starts_from_data(run, source, objective, schedule, train, data.reference))
    run, state = load_model(setup, run, source)
    if data.reference == "cached":
        score_reference(setup, run, objective, data.samples, state, source.fingerprint)

    def policy_weights() -> WeightStream:
        return exported(setup.hooks.swift_iter_weights(run, state))

    roles = {
        role.name: open_role(role, run, setup.hooks, opened.role_sources[role.name], policy_weights)
        for role in opened.roles
    }
    scheduled.model.loaded(run, state, roles)
    job = Job(
        run=run,
        hooks=setup.hooks,
        comms=setup.comms,
        source=source,
        objective=objective,
        batch_schedule=schedule,
        data=data.data,
        validation=data.samples.validation,
        state=state,
        best=BestSoFar.from_config(run.config.train),
        reference=data.reference,
        manifest=_manifest(run, source, data.data, schedule),
        watchdog=setup.watchdog,
        roles=roles,
    )
    if start.folder is not None:
        run.say(
            f"Resuming the run in {relative(start.folder)}, on {run.world.size} process{'es' * (run.world.size > 1)}."
        )
    if start.checkpoint is not None:
        resume(job, start.checkpoint, again=start.folder is not None)
    return job


def _check_export(config: Config) -> None:
    """Refuse an export that could not be written, before it has been trained for."""
    from swift.export.destination import check_destination

    options = config.export
    if options.to is not None and options.out is not None:
        check_destination(options.out, options, out="--export.out", exist_ok="--export.exist_ok true")


def settle_batch(config: Config, checkpoint: Path | None, data_size: int) -> Config:
    """Settle how many rows make a global batch; a resumed run keeps its own, on however many processes."""
    train = config.train
    rows = train.global_batch
    if rows is None and checkpoint is not None:
        rows = facts_of(checkpoint).rows_per_step or None  # an imported checkpoint may not know
    if rows is None:
        rows = train.micro_batch * train.accumulation * data_size
    if (uneven := uneven_batch(rows, data_size)) is not None:
        raise uneven
    share = rows // data_size
    micro = train.micro_batch
    if {"global_batch", "accumulation"} <= train.model_fields_set and "micro_batch" not in train.model_fields_set:
        micro = -(-share // train.accumulation)
    settled = {"global_batch": rows, "micro_batch": min(micro, share)}
    settled["accumulation"] = -(-share // settled["micro_batch"])
    return config.changed(train=settled)


def settle_padding(config: Config, source: ModelSource, features: Collection[str], device: str) -> Config:
    """Settle whether batches are padded where the user left it open: short texts that are scored rarely need it.

    Compiled blocks would be compiled anew for each batch of other lengths.
    """
    if config.data.padding_free is not None:
        return config
    scores = config.model.task != CAUSAL_LM and "data.padding_free" in features
    free = scores and not config.data.packing and not config.train.compile
    if free:
        from swift.models.attention import needs_no_padding

        dtype = getattr(torch, resolve_dtype(config.model.dtype, device)[0])
        free = needs_no_padding(config.model.attention, source.config, device=device, dtype=dtype)
    return config.changed(data={"padding_free": free})


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def load_model(setup: Setup, run: Run, source: ModelSource) -> tuple[Run, TrainState]:
    """Let the backend build, distribute and fill the model; return the run that can send its weights to engines."""
    hooks = setup.hooks
    with waiting("Loading the model"):
        state = hooks.swift_shard(run, hooks.swift_wrap_model(run, source))
    run.adapter_start.clear()  # the model has them
    base = as_trained(as_exported(source), run)

    def send(inference: InferenceEngine | None) -> None:
        weights = adapters_as_trained(exported(hooks.swift_iter_weights(run, state)), run)
        send_weights(inference, weights, source=base, adapter=run.facts.adapter, version=state.step)

    return replace(run, send_weights=send), state


def score_reference(
    setup: Setup, run: Run, objective: Objective, samples: SampleSets, state: TrainState, fingerprint: str
) -> None:
    """Add the log-probabilities of the model as it is now: read from the cache, or made by one pass."""
    scores = ScoreCache(run, setup.hooks, setup.comms, state, fingerprint)
    for each in (samples.train, samples.validation):
        if isinstance(each, ReferencedSamples):
            scores.fill(each, lambda dataset: in_order(run, dataset, objective))


def _data_fingerprint(config: Config, data: PreparedData) -> str:
    if data.train is not None:
        return data.train.samples.fingerprint
    # A stream is known by its name alone until it is read.
    return f"stream-{hash_of(config.data.model_dump_json(exclude={'cache', 'workers', 'validation'}))}"


def _manifest(run: Run, source: ModelSource, data: PreparedData, schedule: BatchSchedule) -> Manifest:
    config, topology = run.config, run.topology
    assert config.train.global_batch is not None
    return Manifest(
        step=0,
        rows_per_step=config.train.global_batch,
        seed=config.train.seed,
        model_fingerprint=source.fingerprint,
        data_fingerprint=_data_fingerprint(config, data),
        backend=config.backend.name,
        config=config.model_dump(mode="json"),
        layout={"world": topology.world.size, **topology.layout},
        schedule={"total_steps": schedule.total_steps, "peak": config.learning_rate, "shape": config.optim.schedule},
        plugins=dict(run.plugins),
    )

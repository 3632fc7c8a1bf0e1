"""All trials of one backend: made when a check asks for them, several at a time, each once."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from swift.config.own_options import AdamOptions, FullOptions, LoraOptions
from swift.config.sections import Config
from swift.contracts import Capabilities
from swift.data import prepare_data
from swift.data.schedules import BatchLayout, EpochSchedule
from swift.models import MediaProcessor, open_source
from swift.parsing import Parsed, config_from_mapping
from swift.plugins import load_plugin
from swift.terminal import say_nothing
from swift.toolkit import initial_head, tuner_of
from swift_testing import third_party
from swift_testing.cases import CASES, HELD_OUT, STEPS, Case
from swift_testing.crew import Job, run_jobs, succeeded
from swift_testing.images import PARTS, SEEING, seen_of
from swift_testing.layouts import Layout
from swift_testing.objectives import install_objectives
from swift_testing.reference import Expected, Recipe, ending_of, evaluate_adapter, run_reference, samples_of
from swift_testing.roles import train_both
from swift_testing.stored import shared_reference
from swift_testing.subjects import Subject, shared_model
from swift_testing.trial import Trial

KILLED_AT = (STEPS + 1) // 2

Key = tuple[Any, ...]
"""What a result is known by."""


class Needed(NamedTuple):
    """A run that checks need."""

    layout: Layout
    key: Key
    job: Callable[[Path], Job]
    """What its processes do, with the checkpoint of the run that it goes on from."""
    after: Needed | None = None
    """That run."""


__tracebackhide__ = True  # pytest shows the sentence alone


class Trials:
    """Runs of `backend`, by case and layout. Folders lie in `folder`."""

    def __init__(
        self,
        backend: str,
        folder: Path,
        *,
        environment: dict[str, str] | None = None,
        preload: Sequence[str] = (),
        fresh: bool = False,
        subject: Subject | None = None,
        seeing: str = SEEING,
        cases: Sequence[Case] = CASES,
    ) -> None:
        install_objectives()
        for case in cases:
            if case.objectives:
                install_objectives(*case.objectives)
        third_party.install()
        self.backend = backend
        self._subject = subject or Subject()
        self._seeing = replace(self._subject, architecture=seeing, changes=())
        self.folder = folder
        self._environment = {"CUDA_VISIBLE_DEVICES": "", **(environment or {})}
        self._preload = ("torch._dynamo", *preload)  # what takes seconds when it is first used
        self._fresh = fresh
        self._results: dict[Key, list[Any]] = {}
        self._announced: dict[Layout, dict[Key, Needed]] = {}

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities that the backend declares."""
        return load_plugin("swift.backends", self.backend).capabilities

    def trial(self, case: Case, layout: Layout, name: str = "whole") -> Trial:
        """Return one that has not been run."""
        output = self.folder / str(layout) / f"{case.name}-{name}"
        return Trial(self.backend, case, layout, self.model(case), output, self.folder / "cache")

    def model(self, case: Case) -> Path:
        """Return the model that a case trains."""
        subject = self._subject if case.modality is None else self._seeing
        if case.architecture is not None:
            subject = replace(subject, architecture=case.architecture, changes=tuple(case.shape.items()))
        return shared_model(subject, tied=case.tied)

    def announce(self, needed: Needed) -> None:
        """Note what will be needed, so that the first possible launch under its layout includes it."""
        self._announced.setdefault(needed.layout, {})[needed.key] = needed

    def outcomes(self, needed: Needed) -> list[Any]:
        """Return each process's outcome of a run, which is made unless it has been."""
        if needed.key not in self._results:
            if needed.after is not None:
                succeeded(self.outcomes(needed.after))
            job = self._job(needed)
            assert job is not None, f"{', '.join(map(str, needed.key))}: the run before it has saved no checkpoint"
            self.results(needed.layout, {needed.key: job})
        return self._results[needed.key]

    def _job(self, needed: Needed) -> Job | None:
        """Return what the processes of a run do; None while the run that it goes on from has not been made."""
        if needed.after is None:
            return needed.job(Path())
        checkpoint = getattr(next(iter(self._results.get(needed.after.key, ())), None), "checkpoint", None)
        return None if checkpoint is None else needed.job(checkpoint)

    def whole_run(self, case: Case, layout: Layout) -> Needed:
        """Describe a whole run of a case."""

        def job(_: Path) -> Job:
            self.expected(case)  # imports, in the process that is forked, what the trials will need
            return self.trial(case, layout).whole

        return Needed(layout, (layout, case.name, "whole"), job)

    def resumed_run(self, case: Case, wrote: Layout, reads: Layout, steps: int) -> Needed:
        """Describe a run that goes on under a layout from what a whole run under another saved on its way.

        Its processes are others than those that saved: what it needs must be in the checkpoint.
        """
        trial, key = self.trial(case, reads, f"resumed from {wrote}"), (reads, case.name, "resumed", wrote, steps)
        return Needed(reads, key, lambda saved: partial(trial.resumed, saved, steps), self.whole_run(case, wrote))

    def run_of_both(self, case: Case, layout: Layout) -> Needed:
        """Describe a run that trains two models, and saves both on its way."""

        def job(_: Path) -> Job:
            self.expected(case), self.expected_of_critic(case)
            return partial(train_both, self.trial(case, layout, "two roles"), self.critic())

        return Needed(layout, (layout, case.name, "two roles"), job)

    def resumed_run_of_both(self, case: Case, wrote: Layout, reads: Layout, steps: int) -> Needed:
        """Describe a run that resumes two models under a layout from what another saved."""
        trial = self.trial(case, reads, f"two roles resumed from {wrote}")

        def job(saved: Path) -> Job:
            return partial(train_both, trial, self.critic(), checkpoint=saved, steps=steps)

        key = (reads, case.name, "two roles resumed", wrote, steps)
        return Needed(reads, key, job, self.run_of_both(case, wrote))

    def whole(self, case: Case, layout: Layout) -> list[Any]:
        """Return each process's outcome of a whole run."""
        return self.outcomes(self.whole_run(case, layout))

    def both(self, case: Case, layout: Layout) -> list[Any]:
        """Return each process's outcome of a run that trains two models, and saves both on its way."""
        return self.outcomes(self.run_of_both(case, layout))

    def killed(self, case: Case, layout: Layout) -> list[Any]:
        """Return each process's outcome up to the checkpoint after which it died."""
        trial = self.trial(case, layout, "killed")
        return self.outcomes(Needed(layout, (layout, case.name, "killed"), lambda _: partial(trial.killed, KILLED_AT)))

    def critic(self) -> Path:
        """Return the model that is trained besides the policy: other weights, in other shapes."""
        changes = (*self._subject.changes, ("intermediate_size", 128))
        return shared_model(replace(self._subject, changes=changes, seed=1), tied=False)

    def expected_of_critic(self, case: Case) -> Expected:
        """Return the reference's results for a run that trains the critic alone."""
        return _expected(case, self.critic())

    def results(self, layout: Layout, jobs: Mapping[Key, Job]) -> dict[Key, list[Any]]:
        """Run jobs under a layout and return their results by rank; known results are not computed again."""
        new = {key: job for key, job in jobs.items() if key not in self._results}
        if new:
            new = {**self._taken_along(layout), **new}
            for module in self._preload:
                importlib.import_module(module)
            run = run_jobs(layout.world, [*new.values()], environment=self._environment, fresh=self._fresh)
            self._results.update(zip(new, run, strict=True))
        return {key: self._results[key] for key in jobs}

    def _taken_along(self, layout: Layout) -> dict[Key, Job]:
        """Return what was announced and can be made by now; the rest is left for the next launch."""
        announced = self._announced.get(layout, {})
        jobs = {key: self._job(needed) for key, needed in announced.items() if key not in self._results}
        self._announced[layout] = {key: announced[key] for key, job in jobs.items() if job is None}
        return {key: job for key, job in jobs.items() if job is not None}

    def expected(self, case: Case) -> Expected:
        """Return the reference's results for a case."""
        return _expected(case, self.model(case))

    def evaluated(self, case: Case, adapter: Mapping[str, np.ndarray]) -> float:
        """Return the reference's loss on the held-out samples with an adapter that a backend has trained."""
        return evaluate_adapter(_recipe(case, self.model(case)), adapter)


_KNOWN: dict[tuple[str, Path], Expected] = {}
"""Results of the reference, by case and model."""


def _expected(case: Case, model: Path) -> Expected:
    known = (case.name, model)
    if known not in _KNOWN:
        _KNOWN[known] = shared_reference(case.name, _recipe(case, model), case.reference or run_reference)
    return _KNOWN[known]


def _recipe(case: Case, model: Path) -> Recipe:
    parsed = _settings(case, model)
    config = parsed.config
    samples, seen = seen_of(model, case.rows) if case.modality else (samples_of(model, case.rows), [])
    adapter: dict[str, Any] | None = None
    if config.tuner.kind == "lora":
        tuner = config.tuner.options(LoraOptions)
        adapter = {"r": tuner.rank, "lora_alpha": tuner.alpha, "lora_dropout": tuner.dropout, "use_dora": tuner.dora}
    optim, adam = config.optim, config.optim.options(AdamOptions)
    return Recipe(
        model=model,
        samples=samples,
        seen=seen,
        batches=batches_of(case, model),
        held_out=range(HELD_OUT),
        evaluated_every=int(config.train.eval_steps or 0),
        objective="tokens" if case.tokens else config.objective.name,
        task=config.model.task,
        labels=config.model.num_labels or 1,
        pooling=config.model.pooling,
        ending=ending_of(model),
        head_start=lambda name, shape: initial_head(shape, seed=config.train.seed, name=name),
        beta=getattr(config.objective, "beta", 0.1),
        lr=config.learning_rate,
        schedule=optim.schedule,
        warmup=optim.warmup_steps or 0,
        steps=STEPS,
        betas=(adam.beta1, adam.beta2),
        eps=adam.eps,
        weight_decay=optim.weight_decay,
        momentum=third_party.MOMENTUM if optim.name == third_party.NAME else None,
        clip=optim.max_grad_norm,
        pad_token=config.train.pad_token,
        freeze=_frozen(case, config),
        in_turn=third_party.in_turn if config.tuner.kind == third_party.TUNER else None,
        notes_changes=case.notes_changes,
        adapter=adapter,
        adapter_start=lambda name, shape: tuner_of(config.tuner).initial(name, shape, config.train.seed),
    )


def _frozen(case: Case, config: Config) -> Sequence[str]:
    """Return patterns of the weights that stay as they are; parts of a vision encoder do by default."""
    patterns = list(config.tuner.options(FullOptions).freeze) if config.tuner.kind == "full" else []
    for flag, (default, names) in PARTS.items() if case.modality else ():
        chosen = getattr(config.tuner, flag)
        patterns += names if (default if chosen is None else chosen) else ()
    return patterns


def _settings(case: Case, model: Path) -> Parsed:
    paths = {"model.path": str(model), "data.cache": str(model.parent / "cache")}
    return config_from_mapping({**case.settings(), **paths})


def batches_of(case: Case, model: Path) -> list[list[int]]:
    """Return which samples each step takes: the order belongs to the run, so that core knows it without any backend."""
    parsed = _settings(case, model)
    config = parsed.config
    source = open_source(config.model, say=say_nothing)
    objective = parsed.objective.for_model(config.model)
    data = prepare_data(
        config.data,
        source.tokenizer,
        encoding=objective.encoding,
        seed=config.train.seed,
        say=say_nothing,
        rows=case.rows,
        images=None if source.processor is None else MediaProcessor(source.processor, config.data),
    )
    assert data.train is not None
    layout = BatchLayout(
        global_rows=case.global_batch,
        micro_rows=case.global_batch,
        seed=config.train.seed,
        max_length=config.data.max_length,
        shuffle=config.data.shuffle,
        packing=config.data.packing,
        max_steps=STEPS,
    )
    schedule = EpochSchedule(data.train.samples, objective, layout)
    return [[sample.sample_id for row in schedule.batch(step, 0, 1).rows for sample in row] for step in range(STEPS)]

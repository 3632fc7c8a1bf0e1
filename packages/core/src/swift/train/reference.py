"""Reference log-probabilities: from the adapter switched off, or from one scoring pass that is kept on disk.

There is never a second copy of the model.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from swift.contracts import Need
from swift.data.corpus import cache_folder
from swift.data.pipeline import Prepared
from swift.data.store import ReferencedSamples, SampleSet, hash_of
from swift.errors import ConfigError
from swift.models.precision import resolve_dtype
from swift.objectives.score import SegmentScore
from swift.plugins.tuner import ends_when_off, tuner_of
from swift.terminal import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from swift.config.sections import Config
    from swift.contracts import Objective, Run, TrainState
    from swift.data.batch import Batch, Row
    from swift.data.samples import Encoded
    from swift.plugins.hooks import Hooks
    from swift.processes.comms import Comms

Mode = Literal["none", "adapter", "cached"]


def reference_mode(objective: Objective, requested: str, config: Config) -> Mode:
    """Return how this run gets its reference, or 'none' when the objective needs none."""
    if Need.REFERENCE_LOGPS not in objective.needs:
        return "none"
    has_adapter = ends_when_off(config.tuner)
    if requested == "adapter" and not has_adapter:
        raise ConfigError(
            "objective.reference is adapter, and there is none that could be switched off to give the model before "
            "training: other weights are trained, or it continues from an adapter.",
            hint="Use --objective.reference cached, or --tuner.kind lora.",
        )
    if requested == "auto":
        return "adapter" if has_adapter else "cached"
    return "adapter" if requested == "adapter" else "cached"


def to_be_scored(data: Prepared | None) -> ReferencedSamples:
    """Return the samples of a data set that a reference model is to score before training; refuse a stream."""
    if data is None:
        raise ConfigError(
            "The objective compares with a reference model, which has to score the data set before training; "
            "data.streaming does not read it beforehand.",
            hint="Leave --streaming out, or train an adapter, which can be switched off (--tuner.kind lora).",
        )
    return ReferencedSamples(data.samples)


def with_adapter_off(hooks: Hooks, run: Run, state: TrainState, batch: Batch) -> Batch:
    """Return the batch with reference log-probabilities of this moment's base model."""
    scores = hooks.swift_forward(run, state, batch, SegmentScore(adapters_off=True)).segments
    return _attach(batch, scores)


class ScoreCache:
    """Log-probabilities of the model as it is before the first step, made once and kept next to the tokenised data."""

    def __init__(self, run: Run, hooks: Hooks, comms: Comms, state: TrainState, model_fingerprint: str) -> None:
        self._run = run
        self._hooks = hooks
        self._comms = comms
        self._state = state
        self._model = model_fingerprint

    def fill(self, dataset: ReferencedSamples, batches: Callable[[SampleSet], Iterable[Batch]]) -> None:
        """Give a data set its scores: read from disk where they are there, else made by one pass over `batches`."""
        path = self._path(dataset)
        kept = self._comms.broadcast(_read(path) if path is not None and self._comms.rank == 0 else None)
        scores = self._score(dataset, batches(dataset)) if kept is None else kept
        if kept is None and path is not None and self._comms.rank == 0:
            _write(path, scores)
        dataset.fill(scores)

    def _path(self, dataset: SampleSet) -> Path | None:
        tuner = self._run.config.tuner
        if tuner.adapter is not None or getattr(tuner_of(tuner).options, "init", "") == "loftq":
            return None  # The reference holds the adapter that training begins with; its content is not hashed.
        key = hash_of("reference", self._model, dataset.fingerprint, self._precision(), tuner.quantize)
        return cache_folder(self._run.config.data) / f"reference-{key}.npy"

    def _precision(self) -> str:
        """Return the precision of the arithmetic; by default that of the configuration on this device."""
        run = self._run
        if run.facts.model is not None:
            return run.facts.model.precision
        return resolve_dtype(run.config.model.dtype, run.topology.device)[0]

    def _score(self, dataset: SampleSet, batches: Iterable[Batch]) -> np.ndarray:
        self._run.say(f"Scoring {len(dataset):,} samples with the reference model, once")
        objective = SegmentScore(adapters_off=False)
        own: list[tuple[int, tuple[float, ...]]] = []
        for batch in progress(batches, "scoring", on=self._comms.rank == 0):
            batch = replace(batch, media_reader=self._run.media_reader)
            segments = self._hooks.swift_forward(self._run, self._state, batch, objective).segments
            for row in _attach(batch, segments).rows:
                own += [(sample.sample_id, _values(sample)) for sample in row]
        by_id = dict(pair for scored in self._comms.gather(own) for pair in scored)
        return np.array([by_id[int(sample_id)] for sample_id in dataset.sample_ids], dtype=np.float32)


def _read(path: Path) -> np.ndarray | None:
    try:
        scores: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError):
        return None
    return scores


def _write(path: Path, scores: np.ndarray) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.npy")
    try:
        np.save(draft, scores, allow_pickle=False)
        draft.replace(path)
    except OSError:
        # Scores that cannot be kept are made again next time.
        draft.unlink(missing_ok=True)


def _values(sample: Encoded) -> tuple[float, ...]:
    assert sample.reference_logps is not None
    return tuple(float(value) for value in sample.reference_logps)


def _attach(batch: Batch, segments: torch.Tensor | None) -> Batch:
    values = np.zeros(0, dtype=np.float32) if segments is None else segments.cpu().numpy()
    rows, used = _rows_with(batch.rows, values)
    if used != len(values):
        raise ValueError(f"{used} segments in the batch, but {len(values)} scores")
    spare: Any = batch.spare_row
    if spare is not None:
        blank = np.zeros(sum(len(sample.segments) for sample in spare), dtype=np.float32)
        spare = _rows_with([spare], blank)[0][0]
    return replace(batch, rows=rows, spare_row=spare)


def _rows_with(rows: Sequence[Row], values: np.ndarray) -> tuple[list[Row], int]:
    at, result = 0, []
    for row in rows:
        samples = []
        for sample in row:
            end = at + len(sample.segments)
            samples.append(replace(sample, reference_logps=values[at:end]))
            at = end
        result.append(tuple(samples))
    return result, at

"""Reference log-probabilities: from the adapter switched off, or from one scoring pass that is kept on disk.

There is never a second copy of the model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from swift.contracts import Need
from swift.errors import ConfigError
from swift.objectives.score import SegmentScore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from swift.config.sections import Config
    from swift.contracts import Objective, Run, TrainState
    from swift.data.batch import Batch, Row
    from swift.data.samples import Encoded
    from swift.plugins.facade import Engine

Mode = Literal["none", "adapter", "cached"]


def reference_mode(objective: Objective, wanted: str, config: Config) -> Mode:
    """How this run gets its reference, or 'none' when the objective needs none."""
    if Need.REFERENCE_LOGPS not in objective.needs:
        return "none"
    has_adapter = config.tuner.kind != "full" and config.tuner.adapter is None
    if wanted == "adapter" and not has_adapter:
        raise ConfigError(
            "objective.reference is adapter, but all weights are trained, so there is no adapter to switch off.",
            hint="Use --objective.reference cached, or --tuner.kind lora.",
        )
    if wanted == "auto":
        return "adapter" if has_adapter else "cached"
    return "adapter" if wanted == "adapter" else "cached"


def with_adapter_off(engine: Engine, run: Run, state: TrainState, batch: Batch) -> Batch:
    """The batch with reference log-probabilities of this moment's base model."""
    scores = engine.forward(run, state, batch, SegmentScore(adapters_off=True)).segments
    return _attach(batch, scores)


def score(engine: Engine, run: Run, state: TrainState, batches: Iterable[Batch]) -> list[tuple[int, tuple[float, ...]]]:
    """(sample id, one value per segment) of this process's slices, by the model as it is now."""
    objective = SegmentScore(adapters_off=False)
    scored: list[tuple[int, tuple[float, ...]]] = []
    for batch in batches:
        segments = engine.forward(run, state, batch, objective).segments
        for row in _attach(batch, segments).rows:
            scored += [(sample.sample_id, _values(sample)) for sample in row]
    return scored


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

"""A distribution with two objectives: `labelled` brings an encoding of its own, `rounds` a schedule of its own.

`rounds` is online learning in small. A round serves two steps. When it begins, the model scores the next samples as it
is; every token of a sample whose mean log-probability lies above the running baseline gets a positive advantage, the
others a negative one. The loss is the policy gradient. So what a step trains on depends on the weights at the beginning
of its round, and a run that is resumed in the middle of one needs what was kept in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swift import LossSums, Need, Section
from swift.contracts import BatchSchedule, ScheduleContext
from swift.data.encodings import EncodedRow, Encoding, ReadRow, RowReader, Sample, raw_text
from swift.data.samples import Encoded
from swift.objectives.base import BaseObjective, PerSampleObjective

STEPS_PER_ROUND = 2
KEPT = 0.9
"""Of the baseline, from one round to the next."""

POINTS = "[swift.objectives]\nlabelled = rounds_plugin:Labelled\nrounds = rounds_plugin:Rounds\n"


@pytest.fixture
def rounds_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the entry points of this module known for one test."""
    info = tmp_path / "site" / "made_up_rounds-1.0.dist-info"
    info.mkdir(parents=True)
    metadata = "Metadata-Version: 2.1\nName: made-up-rounds\nVersion: 1.0\nRequires-Dist: swift-core>=0.1\n"
    (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(info.parent))


class LabelledEncoding(Encoding):
    """A text and the number of its class."""

    name = "labelled"
    segment_names = ("document",)
    values = ("grade",)
    loss_on = "all"
    columns = "text and grade"

    def read(self, row: RowReader) -> Sample:
        return Sample(raw_text(row.text("text")), values={"grade": row.number("grade")})

    def encode(self, row: ReadRow, encoder: Any) -> Any:
        segment = yield from encoder.segment(row.sample.conversation, row.location)
        return EncodedRow((Encoded(0, (segment,), values=dict(row.sample.values)),))


class Labelled(PerSampleObjective[Section]):
    """The likelihood of each text, weighted by its grade; a mean over texts."""

    name = "labelled"
    encoding = LabelledEncoding()

    def loss(self, view: Any, batch: Any) -> LossSums:
        logps = batch.segment_sum(view.token_logps * batch.weights) / batch.segment_sum(batch.weights).clamp(min=1)
        grades = batch.values["grade"]
        active = (batch.segment_sum(batch.weights) > 0).float()
        return LossSums(-(grades * logps * active).sum(), {"grade": ((grades * active).sum(), active.sum())})


class Scores(PerSampleObjective[Section]):
    """The mean log-probability of each sample's learned tokens; no loss."""

    name = "scores"

    def loss(self, view: Any, batch: Any) -> LossSums:
        sums, counts = batch.segment_sum(view.token_logps * batch.weights), batch.segment_sum(batch.weights)
        return LossSums(sums.new_zeros(()), segments=(sums / counts.clamp(min=1)).detach())


class Rounds(BaseObjective[Section]):
    """-Σ advantage · log p, over the learned tokens of the batch."""

    name = "rounds"
    needs = frozenset({Need.TOKEN_LOGPS})

    def row_weight(self, samples: Any) -> float:
        return sum(sample.loss_weight for sample in samples)

    def loss(self, view: Any, batch: Any) -> LossSums:
        weighted = batch.token_values["advantage"] * batch.weights
        return LossSums(-(weighted * view.token_logps).sum(), {"advantage": (weighted.sum(), batch.weights.sum())})

    def batch_schedule(self, context: ScheduleContext) -> RoundsSchedule:
        return RoundsSchedule(context)


class RoundsSchedule(BatchSchedule):
    """Takes samples in order, a round at a time, and gives their tokens advantages."""

    steps_per_epoch = None

    def __init__(self, context: ScheduleContext) -> None:
        self._context = context
        self.total_steps = context.config.train.max_steps or context.default().total_steps
        self._round = -1
        self._baseline = 0.0
        self._advantages: list[float] = []

    def epoch_at(self, step: int) -> float:
        assert self._context.samples is not None
        return step * self._context.layout.global_rows / len(self._context.samples)

    def batch(self, step: int, data_rank: int, data_size: int) -> Any:
        number, within = divmod(step, STEPS_PER_ROUND)
        rows = self._rows(number)
        if number != self._round:
            self._begin(number, rows, data_rank, data_size)
        size = self._context.layout.global_rows
        own = slice(within * size, (within + 1) * size)
        valued = [
            (_with_advantage(sample, advantage),)
            for (sample,), advantage in zip(rows[own], self._advantages[own], strict=True)
        ]
        return self._context.batch(step, valued, data_rank, data_size)

    def state(self) -> Mapping[str, Any]:
        return {"round": self._round, "baseline": self._baseline, "advantages": self._advantages}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._round, self._baseline = state["round"], state["baseline"]
        self._advantages = list(state["advantages"])

    def _rows(self, number: int) -> list[tuple[Encoded]]:
        samples = self._context.samples
        assert samples is not None
        count = self._context.layout.global_rows * STEPS_PER_ROUND
        return [(samples[index % len(samples)],) for index in range(number * count, (number + 1) * count)]

    def _begin(self, number: int, rows: Sequence[tuple[Encoded]], data_rank: int, data_size: int) -> None:
        """Score the rows of a round with the model as it is now."""
        asked = Scores(Section())
        batch = self._context.batch(number, rows, data_rank, data_size)
        segments = self._context.forward(batch, asked).segments
        mine = [] if segments is None else [float(score) for score in segments.cpu()]
        # Processes that share a slice have the same scores.
        slices = dict(self._context.comms.gather((data_rank, mine)))
        scores = np.array([score for rank in sorted(slices) for score in slices[rank]])[: len(rows)]
        self._baseline = float(scores.mean() if self._round < 0 else KEPT * self._baseline + 0.1 * scores.mean())
        self._advantages = [float(np.float32(score - self._baseline)) for score in scores]
        self._round = number


def _with_advantage(sample: Encoded, advantage: float) -> Encoded:
    segments = (
        replace(each, token_values={"advantage": np.full(len(each), advantage, dtype=np.float32)})
        for each in sample.segments
    )
    return replace(sample, segments=tuple(segments))

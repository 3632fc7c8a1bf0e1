"""A teacher's log-probabilities for every token of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from swift import LossSums, Need, Section
from swift.errors import ConfigError
from swift.objectives.base import PerSampleObjective, viewed
from swift.toolkit import heartbeat
from swift_rl.distill.engine import TeacherEngine, size_of
from swift_rl.roles import TEACHER

if TYPE_CHECKING:
    from swift.contracts import ModelView, ScheduleContext, Score
    from swift.data.batch import Batch, MicroBatch, Row
    from swift.data.samples import Segment
    from swift_rl.distill.options import GkdOptions


@dataclass(frozen=True)
class TeacherScore:
    """A teacher's candidates for every token of a sequence after the first."""

    candidates: np.ndarray | None
    """int32 [tokens, K]; None if they are all shared tokens, in order: `Batch.candidates`."""
    logps: np.ndarray
    """float32 [tokens, K]"""

    def of(self, segment: Segment, *, is_taught: bool) -> Segment:
        """Return the scored segment with these scores."""
        nothing = np.zeros((1, self.logps.shape[1]), np.float32)
        values = {
            "teacher_logps": np.concatenate([nothing, self.logps]),
            "is_taught": np.full(len(segment), is_taught, dtype=np.float32),
        }
        candidates = self.candidates
        if candidates is not None:
            candidates = np.concatenate([nothing, candidates]).astype(np.int32)
        return replace(segment, candidates=candidates, token_values={**segment.token_values, **values})


class LikeliestTokens(PerSampleObjective[Section]):
    """The likeliest candidates of every token, or all, with their log-probabilities; its loss is 0."""

    name = "likeliest_tokens"
    needs = frozenset({Need.CANDIDATE_LOGPS})

    def __init__(self, count: int) -> None:
        super().__init__(Section())
        self._count = count

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the values of tokens, and a loss of 0."""
        every = viewed(view.candidate_logps, Need.CANDIDATE_LOGPS)
        if self._count == every.shape[-1]:
            return LossSums(loss=every.sum() * 0.0, tokens={"logps": every})
        logps, ids = every.topk(self._count)
        return LossSums(loss=every.sum() * 0.0, tokens={"logps": logps, "ids": ids})


class Teacher:
    """The teacher of a run of `gkd`. All methods are called on every process."""

    def __init__(self, context: ScheduleContext, options: GkdOptions) -> None:
        self._context = context
        self._as_role = options.teacher_as_role
        self._temperature = options.divergence_temperature
        self.engine = TeacherEngine(context, options, top=options.gkd_logits_topk or size_of(context.source))
        self._everything = tuple(range(self.engine.shared)) if self.engine.kept == self.engine.shared else ()
        """The compared tokens, if these are all shared ones."""

    def annotated(self, batch: Batch, *, is_taught: bool) -> Batch:
        """Return a batch with the teacher's scores; `is_taught`: the completions are not the student's own."""
        scores = iter(self._scores(batch))

        def changed(row: Row, change: Callable[[Segment], Segment]) -> Row:
            return tuple(replace(sample, segments=tuple(map(change, sample.segments))) for sample in row)

        rows = [changed(row, lambda segment: next(scores).of(segment, is_taught=is_taught)) for row in batch.rows]
        spare = None if batch.spare_row is None else changed(batch.spare_row, self._nothing)
        return replace(batch, rows=rows, spare_row=spare, temperature=self._temperature, candidates=self._everything)

    def _scores(self, batch: Batch) -> list[TeacherScore]:
        """Return the teacher's scores of the segments of a batch, in order."""
        if not self._as_role:
            rows = [segment for row in batch.rows for sample in row for segment in sample.segments]
            return self.engine.of_slices([segment.input_ids.tolist() for segment in rows], self._score)
        engine = self.engine
        request = replace(batch, candidates=tuple(range(engine.shared)), temperature=self._temperature)
        found = self._context.role(TEACHER).forward(request, LikeliestTokens(engine.kept)).tokens or ()
        return [TeacherScore(each["ids"][1:] if "ids" in each else None, each["logps"][1:]) for each in found]

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

    def _score(self, sequences: Sequence[Sequence[int]]) -> list[TeacherScore]:
        if not sequences:
            return []
        found: dict[int, TeacherScore] = {}
        for index, score in self.engine.opened().score(sequences, top=self.engine.requested):
            heartbeat()
            found[index] = self._kept_of(score)
        return [found[index] for index in range(len(sequences))]

    def _kept_of(self, score: Score) -> TeacherScore:
        assert score.top_ids is not None
        assert score.top_logprobs is not None
        ids, logps = score.top_ids, score.top_logprobs
        if self._everything:
            return TeacherScore(None, self._warmed(self._in_order(ids, logps)))
        if self.engine.requested > self.engine.kept:
            order = np.argsort(np.where(ids < self.engine.students_tokens, -logps, np.inf), axis=1, kind="stable")
            order = order[:, : self.engine.kept]
            ids, logps = np.take_along_axis(ids, order, 1), np.take_along_axis(logps, order, 1)
        self._check_known(ids, self.engine.students_tokens)
        return TeacherScore(ids, self._warmed(logps))

    def _in_order(self, ids: np.ndarray, logps: np.ndarray) -> np.ndarray:
        """Return the log-probabilities of all shared tokens, in order."""
        size = self.engine.teachers_tokens
        self._check_known(ids[:1] if ids.strides[0] == 0 else ids, size)
        if ids.strides[0] != 0 or not np.array_equal(ids[:1], np.arange(size)[None]):
            ordered = np.full((len(ids), size), -np.inf, np.float32)
            np.put_along_axis(ordered, ids, logps, axis=1)
            logps = ordered
        return logps[:, : self.engine.kept]

    def _check_known(self, ids: np.ndarray, size: int) -> None:
        """Raise if a teacher's server returned tokens that the student does not have."""
        if ids.size and (largest := int(ids.max())) >= size:
            raise ConfigError(
                f"The teacher returned token {largest}, but the student's vocabulary has {size} tokens.",
                hint="Choose a teacher with the student's tokenizer. --teacher_model FOLDER compares the vocabularies "
                "before training.",
            )

    def _warmed(self, logps: np.ndarray) -> np.ndarray:
        """Return log-probabilities at the temperature of the divergence."""
        temperature = self._temperature
        if temperature != 1.0:
            warm = logps.astype(np.float64) / temperature
            logps = (warm - np.logaddexp.reduce(warm, axis=1, keepdims=True)).astype(np.float32)
        return logps

    def _nothing(self, segment: Segment) -> Segment:
        blank = np.zeros((len(segment) - 1, self.engine.kept), np.float32)
        return TeacherScore(None if self._everything else blank, blank).of(segment, is_taught=False)

"""The teacher: an inference engine that says what it would say in place of each token of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from swift.errors import ConfigError, ModelError
from swift.infer import find_source, open_engine
from swift.toolkit import heartbeat
from swift_rl.distill.vocabulary import check_vocabularies, size_of

if TYPE_CHECKING:
    from swift.contracts import Completion, InferenceEngine, PlanContext, Sampling, Score
    from swift.data.batch import Batch
    from swift.data.samples import Encoded, Segment
    from swift_rl.distill.options import GkdOptions

IN_PROCESS = "transformers"
"""The engine of which every slice of a batch has its own; any other answers in the main process for all."""


@dataclass(frozen=True)
class TeacherScore:
    """A teacher's candidates for every token of a text after the first."""

    candidates: np.ndarray
    """int32 [tokens, K]"""
    logps: np.ndarray
    """float32 [tokens, K]"""

    def of(self, segment: Segment, *, is_taught: bool) -> Segment:
        """Return the segment that was scored, with its scores."""
        nothing = np.zeros((1, self.candidates.shape[1]))
        values = {
            "teacher_logps": np.concatenate([nothing, self.logps]).astype(np.float32),
            "is_taught": np.full(len(segment), is_taught, dtype=np.float32),
        }
        candidates = np.concatenate([nothing, self.candidates]).astype(np.int32)
        return replace(segment, candidates=candidates, token_values={**segment.token_values, **values})


class Teacher:
    """The teacher of a run. All methods are called on every process.

    A text is scored by one of the processes that share its slice of the batch, so that all of these learn from the
    same numbers, to the last bit.
    """

    def __init__(self, context: PlanContext, options: GkdOptions) -> None:
        self._context = context
        self._options = options
        self._vocabulary = taught = size_of(context.source)
        trusted = context.config.model.trust_remote_code
        if options.teacher_model is not None:
            source = find_source(options.teacher_model, adapter=options.teacher_adapters, trust_remote_code=trusted)
            check_vocabularies(source, context.source, options.teacher_model)
            taught = size_of(source)
        shared = min(self._vocabulary, taught)
        self._kept = min(options.gkd_logits_topk or shared, shared)
        self._asked = min(self._kept + taught - shared, taught)
        """More than are kept, where the teacher's vocabulary is padded further than the student's."""
        self._engine: InferenceEngine | None = None
        self._slices = context.comms.gather(context.topology.data_rank)
        """By process."""
        one_each = options.teacher_engine == IN_PROCESS or options.teacher_model_server is not None
        rank = context.topology.world.rank
        first = {each: self._slices.index(each) for each in sorted(set(self._slices))}
        self._answered = [each for each, by in first.items() if (by if one_each else 0) == rank]
        """Slices whose texts this process asks about."""
        self._shares = len(first) < len(self._slices) or not one_each
        """Whether some process learns from what another one asked."""
        if options.teacher_model_server is not None:
            self._check_server()

    def annotated(self, batch: Batch, *, is_taught: bool) -> Batch:
        """Return a batch with what the teacher says of its tokens; `is_taught` where the student wrote none of them."""
        texts = [segment.input_ids.tolist() for row in batch.rows for sample in row for segment in sample.segments]
        scores = iter(self.scored(texts))

        def changed(sample: Encoded) -> Encoded:
            return replace(
                sample, segments=tuple(next(scores).of(each, is_taught=is_taught) for each in sample.segments)
            )

        def blank(sample: Encoded) -> Encoded:
            return replace(sample, segments=tuple(self._nothing(each) for each in sample.segments))

        rows = [tuple(changed(sample) for sample in row) for row in batch.rows]
        spare = None if batch.spare_row is None else tuple(blank(sample) for sample in batch.spare_row)
        temperature = self._options.divergence_temperature
        return replace(batch, rows=rows, spare_row=spare, temperature=temperature)

    def scored(self, texts: Sequence[Sequence[int]]) -> list[TeacherScore]:
        """Return what the teacher says of the texts of this process's slice, in order."""
        if not self._shares:
            return self._score(texts)
        comms = self._context.comms
        asked = dict(zip(self._slices, comms.gather(texts), strict=True))
        mine = {each: self._score(asked[each]) for each in self._answered}
        everyone = {each: answers for part in comms.gather(mine) for each, answers in part.items()}
        return everyone[self._context.topology.data_rank]

    def answers(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Return the teacher's own answers to prompts, the same on every process."""
        comms = self._context.comms
        askers = [rank for rank, answered in enumerate(comms.gather(self._answered)) if answered]
        rank = self._context.topology.world.rank
        share = [] if rank not in askers else range(askers.index(rank), len(prompts), len(askers))
        mine = {}
        if share:
            numbers = [place if sampling.numbers is None else sampling.numbers[place] for place in share]
            drawn = self._opened().generate([prompts[place] for place in share], replace(sampling, numbers=numbers))
            for index, completion in drawn:
                heartbeat()
                mine[share[index]] = completion
        everyone = {place: each for part in comms.gather(mine) for place, each in part.items()}
        return [everyone[place] for place in range(len(prompts))]

    def close(self) -> None:
        """Give the engine back."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _score(self, texts: Sequence[Sequence[int]]) -> list[TeacherScore]:
        if not texts:
            return []
        found: dict[int, TeacherScore] = {}
        for place, score in self._opened().score(texts, top=self._asked):
            heartbeat()
            found[place] = self._kept_of(score)
        return [found[place] for place in range(len(texts))]

    def _kept_of(self, score: Score) -> TeacherScore:
        assert score.top_ids is not None
        assert score.top_logprobs is not None
        ids, logps = score.top_ids, score.top_logprobs
        if self._asked > self._kept:
            order = np.argsort(np.where(ids < self._vocabulary, -logps, np.inf), axis=1, kind="stable")
            order = order[:, : self._kept]
            ids, logps = np.take_along_axis(ids, order, 1), np.take_along_axis(logps, order, 1)
        if ids.size and (largest := int(ids.max())) >= self._vocabulary:
            raise ConfigError(
                f"The teacher has a token {largest}, and the student's vocabulary is of {self._vocabulary} tokens.",
                hint="Choose a teacher with the student's tokenizer. With --teacher_model FOLDER vocabularies are "
                "compared before training begins.",
            )
        temperature = self._options.divergence_temperature
        if temperature != 1.0:
            warm = logps.astype(np.float64) / temperature
            logps = (warm - np.logaddexp.reduce(warm, axis=1, keepdims=True)).astype(np.float32)
        return TeacherScore(ids, logps)

    def _check_server(self) -> None:
        """Ask a server about two tokens, before the student is loaded."""
        try:
            self._score([[0, 1]])
        except ModelError as failure:
            raise ModelError(
                f"The teacher does not say what a student learns from it: {failure.message}",
                hint=f"Start the server with --max-logprobs {self._asked}, or type a smaller --gkd_logits_topk.",
            ) from failure

    def _nothing(self, segment: Segment) -> Segment:
        shape = (len(segment) - 1, self._kept)
        return TeacherScore(np.zeros(shape), np.zeros(shape)).of(segment, is_taught=False)

    def _opened(self) -> InferenceEngine:
        if self._engine is None:
            options, topology = self._options, self._context.topology
            server = options.teacher_model_server
            in_process = server is None and options.teacher_engine == IN_PROCESS
            room = {"max_logprobs": self._asked} if server is None and options.teacher_engine == "vllm" else {}
            self._engine = open_engine(
                server or options.teacher_engine,
                # A server has loaded the teacher itself: the student's folder has the tokenizer.
                options.teacher_model or self._context.model,
                adapter=options.teacher_adapters,
                dtype=options.teacher_dtype,
                device=options.teacher_device or (topology.device if in_process else None),
                batch_size=options.teacher_batch_size,
                options={**room, **options.teacher_options},
                trust_remote_code=self._context.config.model.trust_remote_code,
            )
        return self._engine

"""Batch schedules of distillation: which completions each step learns from, with the teacher's scores."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from swift.contracts import SECONDS_GENERATING, BatchSchedule
from swift.data.schedules import shuffler
from swift.errors import ConfigError
from swift_rl.distill.teacher import Teacher
from swift_rl.rounds.base import Rounds
from swift_rl.rounds.data import Prompt, RolloutCompletion, Round
from swift_rl.rounds.files import Generated
from swift_rl.rounds.logps import sample_of
from swift_rl.rounds.prompts import Prompts
from swift_rl.rounds.rollouts import GenerationRequest
from swift_rl.rounds.scoring import on_main

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift.data.batch import Batch, Row
    from swift.data.samples import Encoded, Segment
    from swift_rl.distill.options import GkdOptions

MEASURED = {"loss": "divergence", "kl": "kl", "reverse_kl": "reverse_kl"}
"""Metric of an evaluation → metric of the objective."""
_HARMLESS = ("rollout_batch_size", "rollout_tolerance", "teacher_batch_size", "teacher_device")
_COIN = 0x6B64
"""Separates this random stream from others with the same seed."""


class TaughtData(BatchSchedule):
    """The data, epoch after epoch, with the teacher's scores of its completions."""

    def __init__(self, context: ScheduleContext, options: GkdOptions) -> None:
        self._context = context
        self._teacher = Teacher(context, options)
        self._default = context.default()
        self.total_steps = self._default.total_steps
        self.steps_per_epoch = self._default.steps_per_epoch
        self.evaluation_metrics = () if context.validation is None else (*MEASURED,)

    def epoch_at(self, step: int) -> float:
        """Return how many passes over the data are complete before this step."""
        return self._default.epoch_at(step)

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the data's batch."""
        return self._teacher.annotated(self._default.batch(step, data_rank, data_size), is_taught=True)

    def evaluate(self, step: int) -> Mapping[str, float]:
        """Return the divergence of the student from the teacher on the held-out rows."""
        return _evaluated(self._context, self._teacher, step, _held_out(self._context))

    def state(self) -> Mapping[str, Any]:
        """Return the state of the data's schedule."""
        return self._default.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._default.restore(state)

    def close(self) -> None:
        """Close the teacher."""
        self._teacher.close()


class CompletedPrompts(Prompts):
    """Prompts that end where the last learned completion of their row begins, or with the row."""

    def at(self, index: int, position: int) -> Prompt:
        """Return the prompt of a sample, which the run takes at a position of its order."""
        prompt = super().at(index, position)
        return replace(prompt, token_ids=prompt.token_ids[: start_of_completion(self._data.samples[index].segments[0])])

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each prompt."""
        return np.array([start_of_completion(self._data.samples[index].segments[0]) for index in range(len(self))])

    def completed(self, cursor: int, count: int) -> list[Encoded]:
        """Return the rows with their completions, from a position of the run's order on."""
        return [self._data.samples[self.index_at(position)] for position in range(cursor, cursor + count)]


class TaughtRounds(Rounds):
    """Rounds of completions: the student's own, the teacher's, or those of the data.

    The run's seed and the number of a round decide whether the student generates in it.
    """

    prompts_model = CompletedPrompts
    _prompts: CompletedPrompts

    def __init__(self, context: ScheduleContext, options: GkdOptions) -> None:
        self._options = options
        self._teacher = Teacher(context, options)
        if context.data.train is None:
            raise ConfigError(
                "Distillation cannot stream its prompts unless it learns from the data's completions alone.",
                hint="Leave --streaming out, or pass --lmbda 0.",
            )
        super().__init__(
            context,
            options,
            context.data.train,
            prompts_per_round=context.layout.global_rows * options.steps_per_generation,
            steps_per_round=options.steps_per_generation,
            harmless=_HARMLESS,
        )
        self.evaluation_metrics = () if context.validation is None else (*MEASURED,)
        self._number = -1
        self._samples: Sequence[Encoded] = ()
        self._facts: Mapping[str, float] = {}

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the completions that a step learns from."""
        number, within = self._position(step)
        if number != self._number:
            self._samples, self._facts = self._round_of(number, step - within, within)
            self._number = number
        size = self._context.layout.global_rows
        batch = self._batch(step, self._samples[within * size : (within + 1) * size], data_rank, data_size)
        return self._teacher.annotated(batch, is_taught=not self._facts["on_policy"])

    def metrics(self, step: int) -> Mapping[str, float]:
        """Return the figures of the completions that a step learned from."""
        return self._facts

    def evaluate(self, step: int) -> Mapping[str, float]:
        """Return the divergence from the teacher on the held-out rows, or on the student's completions of them."""
        rows: Sequence[Row]
        if self._options.reads_prompts_alone:
            rows = [(each,) for each in _samples(*self._complete_held_out(step, self._options.temperature, 1))]
        else:
            rows = _held_out(self._context)
        return _evaluated(self._context, self._teacher, step, rows)

    def close(self) -> None:
        """Close the engines."""
        try:
            super().close()
        finally:
            self._teacher.close()

    def _round_of(self, number: int, version: int, within: int) -> tuple[Sequence[Encoded], Mapping[str, float]]:
        """Return the samples of a round, and its figures."""
        begun = time.monotonic()
        by_student = is_on_policy(self._context.config.train.seed, number, self._options.lmbda)
        if not by_student and not self._options.seq_kd:
            samples = self._prompts.completed(number * self._per_round, self._per_round)
            length = float(np.mean([sample.loss_weight for sample in samples]))
            return samples, {"on_policy": 0.0, "completion_length": length}
        made = self._written(number, version, within)
        if made is None and within and by_student:
            raise self._lost(number, version + within)
        if made is None:
            made = self._generated(number, version, by_student=by_student)
            on_main(self._context, lambda: self._keep(made))
        lengths = [len(completion.token_ids) for completion in made.completions]
        facts = {
            "on_policy": float(by_student),
            "completion_length": float(np.mean(lengths)),
            "truncated": float(np.mean([completion.finish_reason == "length" for completion in made.completions])),
            SECONDS_GENERATING: time.monotonic() - begun,
        }
        return _samples(made.prompts, made.completions), facts

    def _generated(self, number: int, version: int, *, by_student: bool) -> Round:
        prompts = self._prompts.next(number * self._per_round, self._per_round)
        sampling = self._rollouts.sampling(self._context.config.train.seed, self._options.temperature)
        request = GenerationRequest(number, version, prompts, 1, sampling)
        if by_student:
            self._rollouts.sync(version)
            completions = self._rollouts.generate(request)
        else:
            completions = self._by_teacher(request)
        return Round(number, version, prompts, completions, cursor=(number + 1) * self._per_round)

    def _by_teacher(self, request: GenerationRequest) -> list[RolloutCompletion]:
        numbers = [number for _, _, number in request.numbered()]
        sampling = replace(request.sampling, numbers=numbers, logprobs="model")
        found = self._teacher.engine.completions([prompt.token_ids.tolist() for prompt in request.prompts], sampling)
        sampled = [Generated(list(each.token_ids), list(each.logprobs), each.finish_reason) for each in found]
        return self._rollouts.gathered(request, dict(zip(numbers, sampled, strict=True)))


def start_of_completion(segment: Segment) -> int:
    """Return where the last stretch of learned tokens begins; the segment's end if none are learned."""
    learned = np.flatnonzero(segment.weights > 0)
    if not len(learned):
        return len(segment)
    breaks = np.flatnonzero(np.diff(learned) > 1)
    return int(learned[breaks[-1] + 1] if len(breaks) else learned[0])


def is_on_policy(seed: int, number: int, part: float) -> bool:
    """Return whether the student generates the completions of a round, as in this fraction of all rounds."""
    return bool(shuffler(seed ^ _COIN, number).random_sample() < part)


def _held_out(context: ScheduleContext) -> Sequence[Row]:
    samples = context.validation
    assert samples is not None
    return [(samples[index],) for index in range(len(samples))]


def _evaluated(context: ScheduleContext, teacher: Teacher, step: int, rows: Sequence[Row]) -> Mapping[str, float]:
    """Return the mean divergence of the student from the teacher over the tokens of some rows."""
    topology, size = context.topology, context.layout.global_rows
    sums = dict.fromkeys(MEASURED, (0.0, 0.0))
    for start in range(0, len(rows), size):
        batch = context.batch(step, rows[start : start + size], topology.data_rank, topology.data_size)
        found = context.forward(teacher.annotated(batch, is_taught=True), context.objective).metrics
        for name, metric in MEASURED.items():
            sums[name] = (sums[name][0] + found[metric][0], sums[name][1] + found[metric][1])
    return {name: total / weight if weight else 0.0 for name, (total, weight) in sums.items()}


def _samples(prompts: Sequence[Prompt], completions: Iterable[RolloutCompletion]) -> list[Encoded]:
    return [
        sample_of(prompt.number, prompt.token_ids, completion.token_ids, {})
        for completion in completions
        for prompt in (prompts[completion.prompt],)
    ]

"""Rounds of distillation: completions of the student, the teacher or the data, which some steps learn from."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swift.data.schedules import shuffler
from swift.errors import CheckpointError, ConfigError
from swift_rl.rounds.batching import rows_of
from swift_rl.rounds.data import Prompt, RolloutCompletion, Round
from swift_rl.rounds.files import FOLDER, Generated, read_round, write_round
from swift_rl.rounds.logps import sample_of
from swift_rl.rounds.prompts import Prompts
from swift_rl.rounds.rollouts import GenerationRequest, Rollouts
from swift_rl.rounds.scoring import on_main
from swift_rl.rounds.settings import check_room

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift.data.batch import Row
    from swift.data.samples import Encoded, Segment
    from swift_rl.distill.options import GkdOptions
    from swift_rl.distill.teacher import Teacher

_HARMLESS = ("rollout_batch_size", "rollout_tolerance", "teacher_batch_size", "teacher_device")
"""Options that a resumed run may change without sampling a round again."""
_COIN = 0x6B64
"""Separates this random stream from others with the same seed."""


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
        epoch_size = len(self)
        return [
            self._data.samples[int(self._order(position // epoch_size)[position % epoch_size])]
            for position in range(cursor, cursor + count)
        ]


def start_of_completion(segment: Segment) -> int:
    """Return where the last stretch of learned tokens begins; the segment's end if none are learned."""
    learned = np.flatnonzero(segment.weights > 0)
    if not len(learned):
        return len(segment)
    breaks = np.flatnonzero(np.diff(learned) > 1)
    return int(learned[breaks[-1] + 1] if len(breaks) else learned[0])


class CompletionRounds:
    """Rounds, each of which serves `steps_per_generation` steps. All methods are called on every process.

    The run's seed and the number of a round decide whether the student generates in it.
    """

    def __init__(self, context: ScheduleContext, options: GkdOptions, teacher: Teacher) -> None:
        self._context = context
        self._options = options
        self._teacher = teacher
        if context.data.train is None:
            raise ConfigError(
                "Distillation cannot stream its prompts unless it learns from the data's completions alone.",
                hint="Leave --streaming out, or pass --lmbda 0.",
            )
        layout = context.layout
        self._prompts = CompletedPrompts(context.data.train, seed=layout.order_seed, shuffle=layout.shuffle)
        held_out = context.data.validation
        self._held_out = None if held_out is None else CompletedPrompts(held_out, seed=0, shuffle=False)
        check_room(context, options, [each.lengths() for each in (self._prompts, self._held_out) if each])
        self._per_round = layout.global_rows * options.steps_per_generation
        rounds_per_epoch = max(1, len(self._prompts) // self._per_round)
        self.steps_per_epoch = rounds_per_epoch * options.steps_per_generation
        self.total_steps = layout.max_steps or max(1, round(layout.epochs * self.steps_per_epoch))
        self._folder = context.folder / FOLDER
        self._rollouts = Rollouts(context, options, self._folder, self._prompts)
        self._fingerprint = _fingerprint(options, self._prompts, context)
        self._number = -1
        self._samples: Sequence[Encoded] = ()
        self._facts: Mapping[str, float] = {}

    def epoch_at(self, step: int) -> float:
        """Return how many passes over the prompts are complete before this step."""
        return step / self._options.steps_per_generation * self._per_round / len(self._prompts)

    def rows(self, step: int) -> tuple[list[Row], Mapping[str, float]]:
        """Return the rows that a step learns from, and the figures of its round."""
        number, within = divmod(step, self._options.steps_per_generation)
        if number != self._number:
            self._samples, self._facts = self._round_of(number, step - within, within)
            self._number = number
        size = self._context.layout.global_rows
        samples = self._samples[within * size : (within + 1) * size]
        return [tuple(samples[index] for index in each) for each in rows_of(self._context, samples)], self._facts

    def held_out(self, step: int) -> list[Row]:
        """Return the held-out prompts with the student's completions under the current weights."""
        assert self._held_out is not None
        self._rollouts.sync(step)
        prompts = list(self._held_out.all())
        sampling = self._rollouts.sampling(self._context.config.train.seed + 1, self._options.temperature)
        completions = self._rollouts.generate(GenerationRequest(-1, step, prompts, 1, sampling), keep=False)
        return [(sample,) for sample in _samples(prompts, completions)]

    def state(self) -> Mapping[str, Any]:
        """Return the folder of the rounds."""
        return {"folder": str(self._folder.absolute())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        if before := state.get("folder"):
            self._rollouts.resumed_from = Path(before)

    def close(self) -> None:
        """Close the student's engine."""
        self._rollouts.close()

    def _round_of(self, number: int, version: int, within: int) -> tuple[Sequence[Encoded], Mapping[str, float]]:
        """Return the samples of a round, and its figures."""
        begun = time.monotonic()
        by_student = is_on_policy(self._context.config.train.seed, number, self._options.lmbda)
        if not by_student and not self._options.seq_kd:
            samples = self._prompts.completed(number * self._per_round, self._per_round)
            length = float(np.mean([sample.loss_weight for sample in samples]))
            return samples, {"on_policy": 0.0, "completion_length": length}
        made = on_main(self._context, lambda: self._written(number, version))
        if made is None and within and by_student:
            raise CheckpointError(
                f"The files of round {number + 1}, which step {version + within + 1} learns from, are missing under "
                f"{self._folder}.",
                hint="Resume from a checkpoint at the end of a round, or restore the run's rollouts folder.",
            )
        if made is None:
            made = self._generated(number, version, by_student=by_student)
            on_main(self._context, lambda: self._keep(made))
        lengths = [len(completion.token_ids) for completion in made.completions]
        facts = {
            "on_policy": float(by_student),
            "completion_length": float(np.mean(lengths)),
            "truncated": float(np.mean([completion.finish_reason == "length" for completion in made.completions])),
            "seconds_generating": time.monotonic() - begun,
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
        found = self._teacher.completions([prompt.token_ids.tolist() for prompt in request.prompts], sampling)
        sampled = [Generated(list(each.token_ids), list(each.logprobs), each.finish_reason) for each in found]
        return self._rollouts.gathered(request, dict(zip(numbers, sampled, strict=True)))

    def _written(self, number: int, version: int) -> Round | None:
        """Return a round that this run, or the run that it resumes, has written."""
        for folder in (self._folder, self._rollouts.resumed_from):
            known = None if folder is None else read_round(folder, number, self._fingerprint)
            if known is not None and known.version == version:
                return known
        return None

    def _keep(self, made: Round) -> None:
        write_round(self._folder, made, self._fingerprint)
        self._rollouts.forget(made.number)


def is_on_policy(seed: int, number: int, part: float) -> bool:
    """Return whether the student generates the completions of a round, as in this fraction of all rounds."""
    return bool(shuffler(seed ^ _COIN, number).random_sample() < part)


def _samples(prompts: Sequence[Prompt], completions: Sequence[RolloutCompletion]) -> list[Encoded]:
    return [
        sample_of(prompt.number, prompt.token_ids, completion.token_ids, {})
        for completion in completions
        for prompt in (prompts[completion.prompt],)
    ]


def _fingerprint(options: GkdOptions, prompts: CompletedPrompts, context: ScheduleContext) -> str:
    """Return a hash of everything that determines a round besides the weights."""
    held = [
        options.model_dump(mode="json", exclude=set(_HARMLESS)),
        prompts.fingerprint,
        context.layout.global_rows,
        context.config.train.seed,
    ]
    return hashlib.sha256(json.dumps(held, sort_keys=True, default=str).encode()).hexdigest()

"""Rounds of distillation: the answers that some steps learn from, by the student, by the teacher, or of the data."""

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
from swift_rl.distill.questions import AnsweredPrompts
from swift_rl.rounds.data import DrawnAnswer, Prompt, Round
from swift_rl.rounds.dealing import rows_of
from swift_rl.rounds.draw import DrawRequest, Rollouts
from swift_rl.rounds.files import FOLDER, Drawn, read_round, write_round
from swift_rl.rounds.judge import on_main
from swift_rl.rounds.logps import sample_of
from swift_rl.rounds.settings import check_room

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift.data.batch import Row
    from swift.data.samples import Encoded
    from swift_rl.distill.options import GkdOptions
    from swift_rl.distill.teacher import Teacher

_HARMLESS = ("rollout_batch_size", "rollout_tolerance", "teacher_batch_size", "teacher_device")
"""Options that a resumed run may change without drawing a round again."""
_COIN = 0x6B64
"""Keeps the draws of who answers apart from other draws of the same seed."""


class AnswerRounds:
    """Rounds, each of which serves `steps_per_generation` steps. All methods are called on every process.

    Whether the student answers in a round is decided by the run's seed and the number of the round alone.
    """

    def __init__(self, context: ScheduleContext, options: GkdOptions, teacher: Teacher) -> None:
        self._context = context
        self._options = options
        self._teacher = teacher
        if context.data.train is None:
            raise ConfigError(
                "Prompts are read in an order of their own, not streamed.",
                hint="Leave --streaming out, or learn from the data's answers alone: --lmbda 0",
            )
        layout = context.layout
        self._questions = AnsweredPrompts(context.data.train, seed=layout.order_seed, shuffle=layout.shuffle)
        held_out = context.data.validation
        self._held_out = None if held_out is None else AnsweredPrompts(held_out, seed=0, shuffle=False)
        check_room(context, options, [each.lengths() for each in (self._questions, self._held_out) if each])
        self._per_round = layout.global_rows * options.steps_per_generation
        rounds_per_epoch = max(1, len(self._questions) // self._per_round)
        self.steps_per_epoch = rounds_per_epoch * options.steps_per_generation
        self.total_steps = layout.max_steps or max(1, round(layout.epochs * self.steps_per_epoch))
        self._folder = context.folder / FOLDER
        self._rollouts = Rollouts(context, options, self._folder, self._questions)
        self._fingerprint = _fingerprint(options, self._questions, context)
        self._number = -1
        self._samples: Sequence[Encoded] = ()
        self._facts: Mapping[str, float] = {}

    def epoch_at(self, step: int) -> float:
        """Return how many passes over the prompts are complete before this step."""
        return step / self._options.steps_per_generation * self._per_round / len(self._questions)

    def rows(self, step: int) -> tuple[list[Row], Mapping[str, float]]:
        """Return the rows that a step learns from, and the figures of its round."""
        number, within = divmod(step, self._options.steps_per_generation)
        if number != self._number:
            self._samples, self._facts = self._begun(number, step - within, within)
            self._number = number
        size = self._context.layout.global_rows
        samples = self._samples[within * size : (within + 1) * size]
        return [tuple(samples[index] for index in each) for each in rows_of(self._context, samples)], self._facts

    def held_out(self, step: int) -> list[Row]:
        """Return the held-out prompts with the student's answers to them, with the weights as they are."""
        assert self._held_out is not None
        self._rollouts.sync(step)
        prompts = list(self._held_out.all())
        sampling = self._rollouts.sampling(self._context.config.train.seed + 1, self._options.temperature)
        answers = self._rollouts.answer(DrawRequest(-1, step, prompts, 1, sampling), keep=False)
        return [(sample,) for sample in _samples(prompts, answers)]

    def state(self) -> Mapping[str, Any]:
        """Return where the answers of the rounds are kept."""
        return {"folder": str(self._folder.absolute())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was asked for."""
        if before := state.get("folder"):
            self._rollouts.resumed_from = Path(before)

    def close(self) -> None:
        """Give the student's engine back."""
        self._rollouts.close()

    def _begun(self, number: int, version: int, within: int) -> tuple[Sequence[Encoded], Mapping[str, float]]:
        """Return the samples of a round, and its figures."""
        begun = time.monotonic()
        by_student = student_answers(self._context.config.train.seed, number, self._options.lmbda)
        if not by_student and not self._options.seq_kd:
            samples = self._questions.answered(number * self._per_round, self._per_round)
            length = float(np.mean([sample.loss_weight for sample in samples]))
            return samples, {"on_policy": 0.0, "completion_length": length}
        made = on_main(self._context, lambda: self._written(number, version))
        if made is None and within and by_student:
            raise CheckpointError(
                f"Step {version + within + 1} learns from round {number + 1}, whose answers are in no file under "
                f"{self._folder}.",
                hint="Resume from a checkpoint at the end of a round, or bring the folder rollouts of the run back.",
            )
        if made is None:
            made = self._answered(number, version, by_student=by_student)
            on_main(self._context, lambda: self._keep(made))
        lengths = [len(answer.token_ids) for answer in made.answers]
        facts = {
            "on_policy": float(by_student),
            "completion_length": float(np.mean(lengths)),
            "truncated": float(np.mean([answer.finish_reason == "length" for answer in made.answers])),
            "seconds_drawing": time.monotonic() - begun,
        }
        return _samples(made.prompts, made.answers), facts

    def _answered(self, number: int, version: int, *, by_student: bool) -> Round:
        prompts = self._questions.next(number * self._per_round, self._per_round)
        sampling = self._rollouts.sampling(self._context.config.train.seed, self._options.temperature)
        asked = DrawRequest(number, version, prompts, 1, sampling)
        if by_student:
            self._rollouts.sync(version)
            answers = self._rollouts.answer(asked)
        else:
            answers = self._by_teacher(asked)
        return Round(number, version, prompts, answers, cursor=(number + 1) * self._per_round)

    def _by_teacher(self, asked: DrawRequest) -> list[DrawnAnswer]:
        numbers = [number for _, _, number in asked.draws()]
        sampling = replace(asked.sampling, numbers=numbers, logprobs="model")
        told = self._teacher.answers([prompt.token_ids.tolist() for prompt in asked.prompts], sampling)
        drawn = [Drawn(list(each.token_ids), list(each.logprobs), each.finish_reason) for each in told]
        return self._rollouts.gathered(asked, dict(zip(numbers, drawn, strict=True)))

    def _written(self, number: int, version: int) -> Round | None:
        """Return a round that an earlier life of this run has written, or the run of which this one is the rest."""
        for folder in (self._folder, self._rollouts.resumed_from):
            known = None if folder is None else read_round(folder, number, self._fingerprint)
            if known is not None and known.version == version:
                return known
        return None

    def _keep(self, made: Round) -> None:
        write_round(self._folder, made, self._fingerprint)
        self._rollouts.forget(made.number)


def student_answers(seed: int, number: int, part: float) -> bool:
    """Return whether the student answers in a round, which it does in this part of all."""
    return bool(shuffler(seed ^ _COIN, number).random_sample() < part)


def _samples(prompts: Sequence[Prompt], answers: Sequence[DrawnAnswer]) -> list[Encoded]:
    return [
        sample_of(prompt.number, prompt.token_ids, answer.token_ids, {})
        for answer in answers
        for prompt in (prompts[answer.prompt],)
    ]


def _fingerprint(options: GkdOptions, questions: AnsweredPrompts, context: ScheduleContext) -> str:
    """Return a hash of all that decides a round besides the weights."""
    held = [
        options.model_dump(mode="json", exclude=set(_HARMLESS)),
        questions.fingerprint,
        context.layout.global_rows,
        context.config.train.seed,
    ]
    return hashlib.sha256(json.dumps(held, sort_keys=True, default=str).encode()).hexdigest()

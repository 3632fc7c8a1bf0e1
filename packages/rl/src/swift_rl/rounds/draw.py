"""Answers of the model in training: its weights go to inference engines, which answer prompts on all processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

import numpy as np

from swift.contracts import PlanContext, Sampling
from swift.errors import CheckpointError
from swift.infer import StopStrings, open_engine
from swift.toolkit import heartbeat, progress
from swift_rl.options import GrpoOptions
from swift_rl.rounds.data import DrawnAnswer, Prompt, draw_number
from swift_rl.rounds.files import DrawJournal, Drawn
from swift_rl.rounds.logps import TokenLogps, sample_of, values_of_answers
from swift_rl.rounds.prompts import Prompts
from swift_rl.sync import Probe, ProbeResult, SyncError, VerifiedEngine

IN_PROCESS = "transformers"
"""The engine of which every process has its own; others answer all prompts of the run."""


EXACT = 1e-3
"""Nats per token by which an engine may score otherwise that computes as the trainer does, in single precision."""
ROUNDED = 0.05
"""The same for any other engine."""
_PROBED = 4
"""Prompts that are compared after each update."""


@dataclass(frozen=True)
class DrawRequest:
    """Prompts to be answered, each so many times, by weights of one version."""

    round: int
    version: int
    prompts: Sequence[Prompt]
    groups: int
    sampling: Sampling

    def draws(self) -> Iterator[tuple[int, int, int]]:
        """Yield (index of the prompt, place within its group, number of the draw)."""
        for index, prompt in enumerate(self.prompts):
            for place in range(self.groups):
                yield index, place, draw_number(prompt.turn, place)


class Rollouts:
    """The engine of this process, and the way of answers from all processes to each."""

    def __init__(self, context: PlanContext, options: GrpoOptions, folder: Path, prompts: Prompts) -> None:
        self._context = context
        self._options = options
        self._folder = folder
        self._engine: VerifiedEngine | None = None
        self.resumed_from: Path | None = None
        """Where an earlier run, of which this one is the rest, has kept its answers."""
        tolerance = options.rollout_tolerance
        if tolerance is None:
            tolerance = EXACT if computes_alike(context, options) else ROUNDED
        first = [prompt.token_ids.tolist() for prompt in prompts.next(0, _PROBED)]
        self._probe = Probe.of(first, tolerance=tolerance)
        self.probed: ProbeResult | None = None
        """What the last update's comparison found, on a process with an engine."""
        self._version = -1
        """Steps that had been made when the engine got its weights."""
        self._stops = StopStrings(context.tokenizer, options.stop_words)
        world = context.topology.world
        shared = options.rollout_engine == IN_PROCESS
        self._workers = world.size if shared else 1
        """So many processes have an engine: the first ones."""
        self._answers = world.rank < self._workers

    @property
    def engine(self) -> VerifiedEngine | None:
        """Return the engine of this process, once it was needed."""
        return self._engine

    def sampling(self, seed: int, temperature: float) -> Sampling:
        """Return how answers are drawn at a temperature."""
        options = self._options
        drawn = Sampling(
            max_new_tokens=options.max_completion_length,
            temperature=temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            seed=seed,
            stop=options.stop_words,
            logprobs="drawn",
        )
        return self._stops.told(drawn)

    def sync(self, version: int) -> None:
        """Give the weights in training, after so many steps, to the engines. Called on every process."""
        if version == self._version:
            return
        if self._answers and self._engine is None:
            self._engine = self._open()
        self._context.send_weights(self._engine)
        self._version = version
        self._compare()

    def _compare(self) -> None:
        """Let engine and trainer score the same texts after an update; raise on every process where they differ."""
        texts = [sample_of(0, np.array(text[:1]), np.array(text[1:]), {}) for text in self._probe.texts]
        if not texts:
            return
        scored = values_of_answers(self._context, texts, TokenLogps(), temperature=1.0)
        known = [values["logps"][1:] for values in scored]
        problem: SyncError | None = None
        if self._engine is not None:
            try:
                self.probed = self._probe.check(self._engine, known)
            except SyncError as failure:
                problem = failure
        for each in self._context.comms.gather(problem):
            if each is not None:
                raise each

    def answer(self, asked: DrawRequest, *, keep: bool = True) -> list[DrawnAnswer]:
        """Return the answers to all prompts, the same on every process. Called on every process."""
        return self.gathered(asked, self.local(asked, keep=keep))

    def local(self, asked: DrawRequest, *, keep: bool = True, show: bool = True) -> dict[int, Drawn]:
        """Draw this process's share of the answers: number of the draw → answer.

        Those that an earlier life of the run has drawn are taken from its journal.
        """
        if not self._answers:
            return {}
        rank = self._context.topology.world.rank
        journal = DrawJournal(self._folder, asked.round, asked.version, rank)
        known: dict[int, Drawn] = {}
        for folder in (self.resumed_from, self._folder) if keep else ():
            if folder is not None:
                known |= DrawJournal(folder, asked.round, asked.version, rank).read()
        mine = [(index, number) for index, _, number in asked.draws() if index % self._workers == rank]
        drawn = {number: known[number] for _, number in mine if number in known}
        missing = [(index, number) for index, number in mine if number not in known]
        numbers = [number for _, number in missing]
        prompts = [asked.prompts[index].token_ids.tolist() for index, _ in missing]
        if prompts and self._engine is None:
            raise CheckpointError(
                f"{len(prompts)} answers of round {asked.round + 1} are not kept under {self._folder}, and the weights "
                "that were to write them are gone.",
                hint="Resume from a checkpoint at the end of a round, or bring the folder rollouts of the run back.",
            )
        answers = self._engine.generate(prompts, replace(asked.sampling, numbers=numbers)) if self._engine else iter(())
        shown = show and self._context.topology.is_main
        for place, came in progress(answers, "Drawing answers", on=shown, total=len(prompts)):
            heartbeat()
            each = Drawn(list(came.token_ids), list(came.logprobs), came.finish_reason)
            drawn[numbers[place]] = each
            if keep:
                journal.add(numbers[place], each)
        return drawn

    def gathered(self, asked: DrawRequest, mine: dict[int, Drawn]) -> list[DrawnAnswer]:
        """Return everybody's answers in order. Called on every process."""
        drawn = {number: each for part in self._context.comms.gather(mine) for number, each in part.items()}
        return [self._answer(index, place, drawn[number]) for index, place, number in asked.draws()]

    def forget(self, number: int) -> None:
        """Take the journal of a round away, on one process, once the round is written whole."""
        DrawJournal(self._folder, number, 0, 0).clear()

    def close(self) -> None:
        """Give the engine back."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _answer(self, prompt: int, place: int, drawn: Drawn) -> DrawnAnswer:
        ids = drawn.token_ids
        text, found = self._stops.before(self._text(ids))
        if not found and drawn.finish_reason == "stop":
            text = self._text(ids[:-1])
        return DrawnAnswer(
            prompt=prompt,
            place=place,
            token_ids=np.array(ids, dtype=np.int32),
            logps=np.array(drawn.logps, dtype=np.float32),
            finish_reason=drawn.finish_reason,
            text=text,
        )

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._context.tokenizer.decode(ids, skip_special_tokens=True))

    def _open(self) -> VerifiedEngine:
        model, options = self._context.config.model, self._options
        in_process = options.rollout_engine == IN_PROCESS
        engine = open_engine(
            options.rollout_engine,
            self._context.model,
            dtype=model.dtype,
            device=self._context.topology.device if in_process else None,
            batch_size=options.rollout_batch_size,
            options=options.rollout_options,
            trust_remote_code=model.trust_remote_code,
        )
        return VerifiedEngine(engine)


def computes_alike(context: PlanContext, options: GrpoOptions) -> bool:
    """Return whether answers are drawn by the engine of this process, in single precision like the training."""
    dtype = context.config.model.dtype
    single = dtype == "float32" or (dtype == "auto" and context.topology.device == "cpu")
    return options.rollout_engine == IN_PROCESS and single


class Ahead:
    """Answers of the next round, drawn in a thread while this one is learned from."""

    def __init__(self, rollouts: Rollouts, asked: DrawRequest) -> None:
        self.asked = asked
        self._rollouts = rollouts
        self._drawn: dict[int, Drawn] = {}
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._work, name="rollouts", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until this process's share is drawn, and kept in its journal."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def answers(self) -> list[DrawnAnswer]:
        """Return everybody's answers. Called on every process."""
        self.wait()
        return self._rollouts.gathered(self.asked, self._drawn)

    def _work(self) -> None:
        try:
            self._drawn = self._rollouts.local(self.asked, show=False)
        except BaseException as failure:
            self._failure = failure

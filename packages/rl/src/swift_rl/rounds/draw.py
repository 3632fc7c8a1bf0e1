"""Answers of the model in training: its weights go to inference engines, which answer prompts on all processes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread

import numpy as np

from swift.contracts import Sampling, ScheduleContext
from swift.errors import CheckpointError, SwiftError
from swift.infer import StopStrings, open_engine
from swift.toolkit import heartbeat, progress
from swift_rl.distill.vocabulary import size_of
from swift_rl.draw_options import DrawOptions
from swift_rl.environments.episodes import Episodes
from swift_rl.environments.select import select_environment
from swift_rl.held import IN_PROCESS
from swift_rl.options import OnlineOptions
from swift_rl.rounds.data import DrawnAnswer, Prompt, draw_number
from swift_rl.rounds.files import DrawJournal, Drawn
from swift_rl.rounds.logps import TokenLogps, sample_of, values_of_answers
from swift_rl.rounds.prompts import Prompts
from swift_rl.sync import Probe, ProbeResult, SyncError, VerifiedEngine

IN_8_BITS = "bnb-int8"
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
    given: Mapping[int, Sequence[DrawnAnswer]] = field(default_factory=dict)
    """Index of a prompt → answers that it has already: it is not drawn for."""

    def draws(self) -> Iterator[tuple[int, int, int]]:
        """Yield (index of the prompt, place within its group, number of the draw)."""
        for index, prompt in enumerate(self.prompts):
            for place in range(0 if index in self.given else self.groups):
                yield index, place, draw_number(prompt.turn, place)


class Rollouts:
    """The engine of this process, and the way of answers from all processes to each."""

    def __init__(self, context: ScheduleContext, options: DrawOptions, folder: Path, prompts: Prompts) -> None:
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
        self._episodes: Episodes | None = None
        if isinstance(options, OnlineOptions):
            environment = select_environment(options, prompts.columns(), context.model)
            self._episodes = None if environment is None else Episodes(context, options, environment)
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
        try:
            mine: dict[int, Drawn] | SwiftError = self.local(asked, keep=keep)
        except SwiftError as failure:  # of one process, of which the others are to know
            mine = failure
        return self.gathered(asked, mine)

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
        if missing and self._engine is None:
            raise CheckpointError(
                f"{len(missing)} answers of round {asked.round + 1} are not kept under {self._folder}, and the weights "
                "that were to write them are gone.",
                hint="Resume from a checkpoint at the end of a round, or bring the folder rollouts of the run back.",
            )
        shown = show and self._context.topology.is_main
        answers = self._draws(
            [(number, asked.prompts[index]) for index, number in mine], frozenset(drawn), asked.sampling
        )
        for number, each in progress(answers, "Drawing answers", on=shown, total=len(missing)):
            heartbeat()
            drawn[number] = each
            if keep:
                journal.add(number, each)
        return drawn

    def _draws(
        self, draws: Sequence[tuple[int, Prompt]], known: Collection[int], sampling: Sampling
    ) -> Iterator[tuple[int, Drawn]]:
        """Yield (number of the draw, answer) of those that are not known, in the order in which they are ready."""
        missing = [draw for draw in draws if draw[0] not in known]
        if self._engine is None or not missing:
            return
        if self._episodes is not None:
            yield from self._episodes.play(self._engine, missing, sampling)
            return
        for batch in self._batches(draws, known, sampling):
            prompts = [prompt.token_ids.tolist() for _, prompt in batch]
            numbers = [number for number, _ in batch]
            for place, came in self._engine.generate(prompts, replace(sampling, numbers=numbers)):
                if numbers[place] not in known:
                    yield numbers[place], Drawn(list(came.token_ids), list(came.logprobs), came.finish_reason)

    def _batches(
        self, draws: Sequence[tuple[int, Prompt]], known: Collection[int], sampling: Sampling
    ) -> list[Sequence[tuple[int, Prompt]]]:
        """Return the draws to make, in the engine's batches: with other neighbours answers would have other last bits.

        A batch of which a part is known, as a run was interrupted in it, is drawn whole.
        """
        assert self._engine is not None
        missing = [draw for draw in draws if draw[0] not in known]
        if len(missing) == len(draws):
            return [missing]
        together = self._engine.batches([prompt.token_ids.tolist() for _, prompt in draws], sampling)
        if together is None:
            return [missing]
        batches = [[draws[place] for place in places] for places in together]
        return [batch for batch in batches if any(number not in known for number, _ in batch)]

    def gathered(self, asked: DrawRequest, mine: dict[int, Drawn] | SwiftError) -> list[DrawnAnswer]:
        """Return everybody's answers, and those that are given, in order. Called on every process."""
        drawn: dict[int, Drawn] = {}
        for part in self._context.comms.gather(mine):
            if isinstance(part, SwiftError):
                raise part
            drawn |= part
        answers = [self._answer(index, place, drawn[number]) for index, place, number in asked.draws()]
        answers += [answer for given in asked.given.values() for answer in given]
        return sorted(answers, key=lambda answer: (answer.prompt, answer.place))

    def forget(self, number: int) -> None:
        """Take the journal of a round away, on one process, once the round is written whole."""
        DrawJournal(self._folder, number, 0, 0).clear()

    def close(self) -> None:
        """Give the engine back, and end the processes of the environment."""
        if self._episodes is not None:
            self._episodes.close()
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _answer(self, prompt: int, place: int, drawn: Drawn) -> DrawnAnswer:
        ids = drawn.token_ids
        if drawn.episode is not None:
            return self._answered(prompt, place, drawn, drawn.episode.text)
        text, found = self._stops.before(self._text(ids))
        if not found and drawn.finish_reason == "stop":
            text = self._text(ids[:-1])
        return self._answered(prompt, place, drawn, text)

    def _answered(self, prompt: int, place: int, drawn: Drawn, text: str) -> DrawnAnswer:
        return DrawnAnswer(
            prompt=prompt,
            place=place,
            token_ids=np.array(drawn.token_ids, dtype=np.int32),
            logps=np.array(drawn.logps, dtype=np.float32),
            finish_reason=drawn.finish_reason,
            text=text,
            episode=drawn.episode,
        )

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._context.tokenizer.decode(ids, skip_special_tokens=True))

    def _open(self) -> VerifiedEngine:
        model, options = self._context.config.model, self._options
        if (quantize := self._context.config.tuner.quantize) != "none":
            inputs = ", which rounds inputs of layers too: gap/mean in the log" if quantize == IN_8_BITS else ""
            self._context.say(f"Answers are drawn with weights as {quantize} keeps them, adapters merged in{inputs}.")
        in_process = options.rollout_engine == IN_PROCESS
        engine = open_engine(
            options.rollout_engine,
            self._context.model,
            dtype="float32" if trains_in_single(self._context) else model.dtype,
            device=self._context.topology.device if in_process else None,
            batch_size=options.rollout_batch_size,
            options=options.rollout_options,
            trust_remote_code=model.trust_remote_code,
            trained_adapter=self._context.adapter(),
            say=self._context.say,
        )
        return VerifiedEngine(engine, vocabulary=size_of(self._context.source))


def computes_alike(context: ScheduleContext, options: DrawOptions) -> bool:
    """Return whether answers are drawn by the engine of this process, in single precision like the training.

    Layers of 8 bits round what goes into them as well, which no engine does.
    """
    in_8_bits = context.config.tuner.quantize == IN_8_BITS
    return options.rollout_engine == IN_PROCESS and trains_in_single(context) and not in_8_bits


def trains_in_single(context: ScheduleContext) -> bool:
    """Return whether the model in training computes in single precision; vLLM would not, left to itself."""
    dtype = context.config.model.dtype
    return dtype == "float32" or (dtype == "auto" and context.topology.device == "cpu")


class Ahead:
    """Answers of the next round, drawn in a thread while this one is learned from."""

    def __init__(self, rollouts: Rollouts, asked: DrawRequest) -> None:
        self.asked = asked
        self._rollouts = rollouts
        self._drawn: dict[int, Drawn] | SwiftError = {}
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
        except SwiftError as failure:
            self._drawn = failure
        except BaseException as failure:
            self._failure = failure

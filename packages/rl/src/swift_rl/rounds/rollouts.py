"""Completions of the model in training: its weights go to inference engines, which generate on all processes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread

import numpy as np

from swift.contracts import Sampling, ScheduleContext
from swift.errors import CheckpointError, SwiftError
from swift.toolkit import heartbeat, progress
from swift_infer import StopStrings, open_engine
from swift_rl.distill.engine import size_of
from swift_rl.environments.episodes import Episodes
from swift_rl.environments.select import select_environment
from swift_rl.options import OnlineOptions
from swift_rl.roles import IN_PROCESS
from swift_rl.rollout_options import GenerationOptions
from swift_rl.rounds.data import Prompt, RolloutCompletion, completion_number
from swift_rl.rounds.files import Generated, RolloutLog
from swift_rl.rounds.logps import TokenLogps, sample_of, values_of_completions
from swift_rl.rounds.prompts import Prompts
from swift_rl.sync import Probe, ProbeResult, SyncError, VerifiedEngine

IN_8_BITS = "bnb-int8"
EXACT = 1e-3
"""Nats per token by which the scores of an engine that computes as the trainer does, in float32, may differ."""
ROUNDED = 0.05
"""The same for any other engine."""
_PROBED = 4
"""Number of prompts that are compared after each update."""


@dataclass(frozen=True)
class GenerationRequest:
    """Prompts to complete with weights of one version, `groups` times each."""

    round: int
    version: int
    prompts: Sequence[Prompt]
    groups: int
    sampling: Sampling
    given: Mapping[int, Sequence[RolloutCompletion]] = field(default_factory=dict)
    """Index of a prompt → completions that it has already: none are sampled for it."""

    def numbered(self) -> Iterator[tuple[int, int, int]]:
        """Yield (index of the prompt, index within its group, number of the completion)."""
        for prompt_index, prompt in enumerate(self.prompts):
            for index in range(0 if prompt_index in self.given else self.groups):
                yield prompt_index, index, completion_number(prompt.position, index)


class Rollouts:
    """The engine of this process, and the exchange of completions between processes."""

    def __init__(self, context: ScheduleContext, options: GenerationOptions, folder: Path, prompts: Prompts) -> None:
        self._context = context
        self._options = options
        self._folder = folder
        self._engine: VerifiedEngine | None = None
        self.resumed_from: Path | None = None
        """The folder of rollouts of the run that this one resumes."""
        tolerance = options.rollout_tolerance
        if tolerance is None:
            tolerance = EXACT if computes_alike(context, options) else ROUNDED
        first = [prompt.token_ids.tolist() for prompt in prompts.next(0, _PROBED)]
        self._probe = Probe.of(first, tolerance=tolerance)
        self.probed: ProbeResult | None = None
        """Result of the comparison after the last update, on a process with an engine."""
        self._version = -1
        """How many optimizer steps had made the engine's weights."""
        self._stops = StopStrings(context.tokenizer, options.stop_words)
        self._episodes: Episodes | None = None
        if isinstance(options, OnlineOptions):
            environment = select_environment(options, prompts.columns(), context.model)
            self._episodes = None if environment is None else Episodes(context, options, environment)
        world = context.topology.world
        shared = options.rollout_engine == IN_PROCESS
        self._workers = world.size if shared else 1
        """The number of processes with an engine: the first ones."""
        self._has_engine = world.rank < self._workers

    @property
    def engine(self) -> VerifiedEngine | None:
        """Return the engine of this process; None until it is needed."""
        return self._engine

    def sampling(self, seed: int, temperature: float) -> Sampling:
        """Return the sampling parameters at a temperature."""
        options = self._options
        parameters = Sampling(
            max_new_tokens=options.max_completion_length,
            temperature=temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            seed=seed,
            stop=options.stop_words,
            logprobs="sampled",
        )
        return self._stops.applied_to(parameters)

    def sync(self, version: int) -> None:
        """Send the weights in training, after `version` steps, to the engines. Called on every process."""
        if version == self._version:
            return
        if self._has_engine and self._engine is None:
            self._engine = self._open()
        self._context.send_weights(self._engine)
        self._version = version
        self._compare()

    def _compare(self) -> None:
        """Let engine and trainer score the same sequences after an update; raise on every process if they differ."""
        samples = [sample_of(0, np.array(each[:1]), np.array(each[1:]), {}) for each in self._probe.sequences]
        if not samples:
            return
        scored = values_of_completions(self._context, samples, TokenLogps(), temperature=1.0)
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

    def generate(self, request: GenerationRequest, *, keep: bool = True) -> list[RolloutCompletion]:
        """Return the completions of all prompts, the same on every process. Called on every process."""
        try:
            mine: dict[int, Generated] | SwiftError = self.local(request, keep=keep)
        except SwiftError as failure:  # raised on every process in `gathered`
            mine = failure
        return self.gathered(request, mine)

    def local(self, request: GenerationRequest, *, keep: bool = True, show: bool = True) -> dict[int, Generated]:
        """Sample this process's part of the completions: number of the completion → completion.

        Completions that are in the rollout log of an interrupted run are read from there.
        """
        if not self._has_engine:
            return {}
        rank = self._context.topology.world.rank
        log = RolloutLog(self._folder, request.round, request.version, rank)
        known: dict[int, Generated] = {}
        for folder in (self.resumed_from, self._folder) if keep else ():
            if folder is not None:
                known |= RolloutLog(folder, request.round, request.version, rank).read()
        mine = [(index, number) for index, _, number in request.numbered() if index % self._workers == rank]
        sampled = {number: known[number] for _, number in mine if number in known}
        missing = [(index, number) for index, number in mine if number not in known]
        if missing and self._engine is None:
            raise CheckpointError(
                f"{len(missing)} completions of round {request.round + 1} are missing under {self._folder}, and the "
                "weights to sample them with no longer exist.",
                hint="Resume from a checkpoint at the end of a round, or restore the run's rollouts folder.",
            )
        shown = show and self._context.topology.is_main
        completions = self._generate(
            [(number, request.prompts[index]) for index, number in mine], frozenset(sampled), request.sampling
        )
        for number, each in progress(completions, "Generating completions", on=shown, total=len(missing)):
            heartbeat()
            sampled[number] = each
            if keep:
                log.add(number, each)
        return sampled

    def _generate(
        self, numbered: Sequence[tuple[int, Prompt]], known: Collection[int], sampling: Sampling
    ) -> Iterator[tuple[int, Generated]]:
        """Yield (number, completion) for the numbers that are not known, in the order in which they are ready."""
        missing = [each for each in numbered if each[0] not in known]
        if self._engine is None or not missing:
            return
        if self._episodes is not None:
            yield from self._episodes.play(self._engine, missing, sampling)
            return
        for batch in self._batches(numbered, known, sampling):
            prompts = [prompt.token_ids.tolist() for _, prompt in batch]
            numbers = [number for number, _ in batch]
            for index, found in self._engine.generate(prompts, replace(sampling, numbers=numbers)):
                if numbers[index] not in known:
                    yield numbers[index], Generated(list(found.token_ids), list(found.logprobs), found.finish_reason)

    def _batches(
        self, numbered: Sequence[tuple[int, Prompt]], known: Collection[int], sampling: Sampling
    ) -> list[Sequence[tuple[int, Prompt]]]:
        """Return the batches to generate, as the engine would form them: the last bits depend on the batch.

        A batch that an interrupted run completed in part is generated whole.
        """
        assert self._engine is not None
        missing = [each for each in numbered if each[0] not in known]
        if len(missing) == len(numbered):
            return [missing]
        together = self._engine.batches([prompt.token_ids.tolist() for _, prompt in numbered], sampling)
        if together is None:
            return [missing]
        batches = [[numbered[index] for index in indices] for indices in together]
        return [batch for batch in batches if any(number not in known for number, _ in batch)]

    def gathered(self, request: GenerationRequest, mine: dict[int, Generated] | SwiftError) -> list[RolloutCompletion]:
        """Return the completions of all processes and the given ones, in order. Called on every process."""
        sampled: dict[int, Generated] = {}
        for part in self._context.comms.gather(mine):
            if isinstance(part, SwiftError):
                raise part
            sampled |= part
        completions = [self._completion(prompt, index, sampled[number]) for prompt, index, number in request.numbered()]
        completions += [completion for given in request.given.values() for completion in given]
        return sorted(completions, key=lambda completion: (completion.prompt, completion.index))

    def forget(self, number: int) -> None:
        """Delete the rollout log of a round, on one process, once the round is written whole."""
        RolloutLog(self._folder, number, 0, 0).clear()

    def close(self) -> None:
        """Close the engine, and end the processes of the environment."""
        if self._episodes is not None:
            self._episodes.close()
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _completion(self, prompt: int, index: int, generated: Generated) -> RolloutCompletion:
        return RolloutCompletion(
            prompt=prompt,
            index=index,
            token_ids=np.array(generated.token_ids, dtype=np.int32),
            logps=np.array(generated.logps, dtype=np.float32),
            finish_reason=generated.finish_reason,
            text=self._text_of(generated),
            episode=generated.episode,
        )

    def _text_of(self, generated: Generated) -> str:
        if generated.episode is not None:
            return generated.episode.text
        text, found = self._stops.before(self._text(generated.token_ids))
        if not found and generated.finish_reason == "stop":
            return self._text(generated.token_ids[:-1])
        return text

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._context.tokenizer.decode(ids, skip_special_tokens=True))

    def _open(self) -> VerifiedEngine:
        model, options = self._context.config.model, self._options
        if (quantize := self._context.config.tuner.quantize) != "none":
            inputs = ". It also rounds layer inputs: see mismatch/mean in the log" if quantize == IN_8_BITS else ""
            self._context.say(f"Completions are sampled with the {quantize} weights, adapters merged in{inputs}.")
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


def computes_alike(context: ScheduleContext, options: GenerationOptions) -> bool:
    """Return whether the engine of this process samples the completions, in float32 like the training.

    8-bit layers also round their inputs, which no engine does.
    """
    in_8_bits = context.config.tuner.quantize == IN_8_BITS
    return options.rollout_engine == IN_PROCESS and trains_in_single(context) and not in_8_bits


def trains_in_single(context: ScheduleContext) -> bool:
    """Return whether the model in training computes in float32, which is not vLLM's default."""
    dtype = context.config.model.dtype
    return dtype == "float32" or (dtype == "auto" and context.topology.device == "cpu")


class PrefetchedRound:
    """Completions of the next round, sampled in a thread while this one is learned from."""

    def __init__(self, rollouts: Rollouts, request: GenerationRequest) -> None:
        self.request = request
        self._rollouts = rollouts
        self._generated: dict[int, Generated] | SwiftError = {}
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._work, name="rollouts", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until this process's part is sampled and in its rollout log."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def completions(self) -> list[RolloutCompletion]:
        """Return the completions of all processes. Called on every process."""
        self.wait()
        return self._rollouts.gathered(self.request, self._generated)

    def _work(self) -> None:
        try:
            self._generated = self._rollouts.local(self.request, show=False)
        except SwiftError as failure:
            self._generated = failure
        except BaseException as failure:
            self._failure = failure

"""Completions of the model in training: its weights go to inference engines, which generate on all processes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

import numpy as np

from swift.contracts import Sampling, ScheduleContext
from swift.errors import CheckpointError, SwiftError
from swift.toolkit import heartbeat, progress
from swift_infer import StopStrings, open_engine
from swift_rl.distill.engine import size_of
from swift_rl.environments.episodes import Episodes, text_of
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

    def numbered(self) -> Iterator[tuple[int, int, int]]:
        """Yield (index of the prompt, index within its group, number of the completion)."""
        for prompt_index, prompt in enumerate(self.prompts):
            for index in range(self.groups):
                yield prompt_index, index, completion_number(prompt.position, index)


class Rollouts:
    """The engine of this process, and the exchange of completions between processes."""

    def __init__(self, context: ScheduleContext, options: GenerationOptions, folder: Path, prompts: Prompts) -> None:
        self._context = context
        self._options = options
        self._folder = folder
        self.engine: VerifiedEngine | None = None
        """The engine of this process; None until it is needed."""
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
        if self._has_engine and self.engine is None:
            self.engine = self._open()
        self._context.send_weights(self.engine)
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
        if self.engine is not None:
            try:
                self.probed = self._probe.check(self.engine, known)
            except SyncError as failure:
                problem = failure
        for each in self._context.comms.gather(problem):
            if each is not None:
                raise each

    def generate(self, request: GenerationRequest, *, keep: bool = True) -> list[RolloutCompletion]:
        """Return the completions of all prompts, the same on every process. Called on every process."""
        return self.gathered(request, self.local(request, keep=keep))

    def local(
        self, request: GenerationRequest, *, keep: bool = True, show: bool = True
    ) -> dict[int, Generated] | SwiftError:
        """Sample this process's part of the completions: number of the completion → completion.

        Completions that are in the rollout log of an interrupted run are read from there. An error is returned, so that
        `gathered` raises it on every process.
        """
        try:
            return self._local(request, keep=keep, show=show)
        except SwiftError as failure:
            return failure

    def _local(self, request: GenerationRequest, *, keep: bool, show: bool) -> dict[int, Generated]:
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
        if missing and self.engine is None:
            raise CheckpointError(
                f"{len(missing)} completions of round {request.round + 1} are missing under {self._folder}, and the "
                "weights to sample them with no longer exist.",
                hint="Resume from a checkpoint at the end of a round, or restore the run's rollouts folder.",
            )
        shown = show and self._context.topology.is_main
        completions = self._generate(
            [(number, request.prompts[index]) for index, number in mine], sampled.keys(), request.sampling
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
        if self.engine is None or not missing:
            return
        if self._episodes is not None:
            yield from self._episodes.play(self.engine, missing, sampling)
            return
        for batch in self._batches(self.engine, numbered, missing, sampling):
            prompts = [prompt.token_ids.tolist() for _, prompt in batch]
            numbers = [number for number, _ in batch]
            for index, found in self.engine.generate(prompts, replace(sampling, numbers=numbers)):
                if numbers[index] not in known:
                    yield numbers[index], Generated(list(found.token_ids), list(found.logprobs), found.finish_reason)

    @staticmethod
    def _batches(
        engine: VerifiedEngine,
        numbered: Sequence[tuple[int, Prompt]],
        missing: Sequence[tuple[int, Prompt]],
        sampling: Sampling,
    ) -> list[Sequence[tuple[int, Prompt]]]:
        """Return the batches to generate, as the engine would form them: the last bits depend on the batch.

        A batch that an interrupted run completed in part is generated whole.
        """
        together = None
        if len(missing) < len(numbered):
            together = engine.batches([prompt.token_ids.tolist() for _, prompt in numbered], sampling)
        if together is None:
            return [missing]
        lacking = {number for number, _ in missing}
        batches = [[numbered[index] for index in indices] for indices in together]
        return [batch for batch in batches if any(number in lacking for number, _ in batch)]

    def gathered(self, request: GenerationRequest, mine: dict[int, Generated] | SwiftError) -> list[RolloutCompletion]:
        """Return the completions of all processes, in order. Called on every process."""
        sampled: dict[int, Generated] = {}
        for part in self._context.comms.gather(mine):
            if isinstance(part, SwiftError):
                raise part
            sampled |= part
        return [self._completion(prompt, index, sampled[number]) for prompt, index, number in request.numbered()]

    def close(self) -> None:
        """Close the engine, and end the processes of the environment."""
        if self._episodes is not None:
            self._episodes.close()
        if self.engine is not None:
            self.engine.close()
            self.engine = None

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
        return text_of(self._context.tokenizer, self._stops, generated.token_ids, generated.finish_reason)

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
        self._generated: Future[dict[int, Generated] | SwiftError] = Future()
        Thread(target=self._work, name="rollouts", daemon=True).start()

    def wait(self) -> None:
        """Wait until this process's part is sampled and in its rollout log."""
        self._generated.result()

    def completions(self) -> list[RolloutCompletion]:
        """Return the completions of all processes. Called on every process."""
        return self._rollouts.gathered(self.request, self._generated.result())

    def _work(self) -> None:
        try:
            self._generated.set_result(self._rollouts.local(self.request, show=False))
        except BaseException as failure:
            self._generated.set_exception(failure)

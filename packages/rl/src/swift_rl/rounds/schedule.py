"""The schedule of online learning: the model in training completes prompts, and steps learn from the completions."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from swift.contracts import SECONDS_GENERATING
from swift.errors import ConfigError
from swift.files import replace_file
from swift_rl.audit import page_of
from swift_rl.health import Health
from swift_rl.mismatch import mismatch
from swift_rl.options import OnlineOptions
from swift_rl.rounds.base import Rounds
from swift_rl.rounds.batching import indices_of_step
from swift_rl.rounds.data import Prompt, RolloutCompletion, Round
from swift_rl.rounds.files import path_of
from swift_rl.rounds.logps import sample_of
from swift_rl.rounds.reference import RunReference
from swift_rl.rounds.rollouts import GenerationRequest, PrefetchedRound
from swift_rl.rounds.scoring import RewardScorer, on_main
from swift_rl.rounds.values import KeptCompletions, figures

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift.data.batch import Batch
    from swift.data.samples import Encoded


ALL_PAGES = 10
"""The first rounds that have a page each."""
EVERY_PAGE = 10
"""Later rounds have a page at this interval."""
_HARMLESS = (
    *("max_idle_rounds", "reward_timeout", "reward_workers", "reward_memory", "reward_retries", "reward_max_failed"),
    *("environment_timeout", "episode_timeout"),
    *("eval_temperature", "num_generations_eval", "rollout_batch_size", "rollout_tolerance", "log_entropy"),
    *("teacher_batch_size", "teacher_device"),
)
_SHAPE = ("completion_length", "truncated")
"""Figures of completions besides their rewards."""


Options = TypeVar("Options", bound=OnlineOptions)


class RolloutSchedule(Rounds, Generic[Options]):
    """Rounds of completions, each of which serves some steps.

    An objective has a subclass, which computes the values of tokens that its loss reads. `value` is called when
    completions are sampled and scored, then `fill_in` when the round is complete and the weights are still those at its
    beginning. Values are stored as attributes of the completions. These are written to disk with the round, and read
    for each step, so that a run can resume in the middle of a round.
    """

    token_columns: ClassVar[tuple[str, ...]]
    """Attributes of completions that samples get as `MicroBatch.token_values`, where known."""

    def __init__(self, context: ScheduleContext, options: Options) -> None:
        self.options = options
        if context.data.train is None:
            raise ConfigError("Online learning cannot stream its prompts.", hint="Leave --streaming out.")
        super().__init__(
            context,
            options,
            context.data.train,
            prompts_per_round=_prompts_per_round(context.layout.global_rows, options),
            steps_per_round=options.steps_per_round,
            harmless=_HARMLESS,
        )
        _check_settings(options)
        self.scorer: RewardScorer | None = None
        """None in a run that learns without rewards."""
        self.evaluation_metrics: Sequence[str] = ()
        if not options.learns_without_rewards:
            self.scorer = RewardScorer(context, options, self._prompts.columns())
            if self._held_out is not None:
                of_rewards = [f"rewards/{name}" for name in self.scorer.names]
                self.evaluation_metrics = ("reward", *of_rewards, *_SHAPE)
        self._reference = RunReference(context, options) if options.has_reference else None
        self._round: Round | None = None
        self._prefetched: PrefetchedRound | None = None
        self._cursor = 0
        self._resumed: Mapping[str, Any] = {}
        self._health = Health(options.max_idle_rounds, context.say)
        for line in options.notes():
            context.say(line)

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the completions that a step learns from."""
        if self._reference is not None:
            self._reference.before_step(step)
        number, within = self._position(step)
        if self._round is None or self._round.number != number:
            self._round = self._begin(number, step, within)
            self.begin(self._round)
        prompts, completions = self._round.prompts, self._of_step(self._round, within)
        samples = [self._sample_of(prompts[completion.prompt], completion) for completion in completions]
        return replace(self._batch(step, samples, data_rank, data_size), temperature=self.options.temperature)

    def metrics(self, step: int) -> Mapping[str, float]:
        """Return the figures of the round that a step belongs to."""
        return {} if self._round is None else self._round.facts

    def evaluate(self, step: int) -> Mapping[str, float]:
        """Complete the held-out prompts with the current weights, and return the mean rewards."""
        if self._prefetched is not None:
            self._prefetched.wait()
        options = self.options
        prompts, completions = self._complete_held_out(step, options.eval_temperature, options.num_generations_eval)
        self._score(prompts, completions)
        found = figures(completions, self.scorer)
        return {name: found.get(name, 0.0) for name in self.evaluation_metrics}

    def state(self) -> Mapping[str, Any]:
        """Return the run's position in its prompts, once all completions that were begun are in the rollout log."""
        if self._prefetched is not None:
            self._prefetched.wait()
        if self._round is None:
            return dict(self._resumed)
        return {
            **super().state(),
            "round": self._round.number,
            "version": self._round.version,
            "cursor": self._cursor,
            "prefetched": None if self._prefetched is None else self._prefetched.request.version,
            **({"values": dict(values)} if (values := self.values_state()) else {}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        super().restore(state)
        self._resumed = dict(state)
        self._cursor = int(state.get("cursor", 0))

    def close(self) -> None:
        """End engines and the processes of rewards."""
        try:
            if self._prefetched is not None:
                self._prefetched.wait()
        finally:
            self._prefetched = None
            super().close()
            for each in (self.scorer, self._reference):
                if each is not None:
                    each.close()

    # What an objective defines

    @abstractmethod
    def value(self, completions: Sequence[RolloutCompletion]) -> list[float]:
        """Fill in summed rewards and values derived from them; return the spread of each group's rewards in order."""

    @abstractmethod
    def fill_in(self, kept: KeptCompletions) -> Mapping[str, float]:
        """Fill in values that need forward passes, and those derived from them; return figures of the round."""

    def begin(self, made: Round) -> None:
        """Update state from a round before its steps; a resumed run reads the round from its file."""

    def values_state(self) -> Mapping[str, Any]:
        """Return JSON values of the objective for checkpoints."""
        return {}

    def evaluate_reference(self, kept: KeptCompletions) -> None:
        """Fill in the log-probabilities of the reference, if there is one."""
        if self._reference is not None:
            kept.fill("ref_logps", self._reference.logps(kept))

    # Rounds

    def _begin(self, number: int, step: int, within: int) -> Round:
        """Return a round, from its files if the run was resumed, else newly made."""
        version = step - within
        known = self._written(number, self._version_of(version), within)
        if known is not None:
            self._cursor = known.cursor
            self._prefetch(number, version, synced=bool(within))
            return known
        if within:
            raise self._lost(number, step)
        begun = time.monotonic()
        made = self._sample(number, version)
        self._prefetch(number, version)
        sampled = time.monotonic()
        self._fill(made, version)
        made.facts |= {SECONDS_GENERATING: sampled - begun, "seconds_scoring": time.monotonic() - sampled}
        on_main(self._context, lambda: self._keep(made))
        self._health.look(made)
        return made

    def _fill(self, made: Round, step: int) -> None:
        """Complete a round with the model in training after `step` steps."""
        made.facts |= self.fill_in(KeptCompletions.of(made, self._context, self.options))
        truncated = self.options.top_p < 1 or self.options.top_k > 0
        made.facts |= mismatch(made, probe=self._rollouts.probed, truncated=truncated, trainer_version=step)
        made.facts |= {**figures(made.completions, self.scorer), "dropped_groups": float(len(made.dropped))}

    def _version_of(self, version: int) -> int:
        """Return the step whose weights sample a round that begins at the step `version`."""
        behind = self.options.rollout_staleness * self._steps_per_round
        return max(0, version - behind)

    def _request(self, number: int, version: int, prompts: Sequence[Prompt]) -> GenerationRequest:
        sampling = self._rollouts.sampling(self._context.config.train.seed, self.options.temperature)
        return GenerationRequest(number, version, prompts, self.options.num_generations, sampling)

    def _sample(self, number: int, step: int) -> Round:
        """Return the scored completions of the next prompts, without values of the model in training."""
        version = self._version_of(step)
        if self._prefetched is None and version == step:
            self._rollouts.sync(step)
        made = Round(number, version, [], [], cursor=self._cursor)
        request = self._request(number, version, self._prompts.next(made.cursor, self._per_round))
        if self._prefetched is not None:
            completions, self._prefetched = self._prefetched.completions(), None
        else:
            completions = self._rollouts.generate(request)
        self._add(made, request.prompts, completions)
        for _ in range(self.options.max_resample_times if self.options.dynamic_sample else 0):
            missing = self._per_round - (len(made.prompts) - len(made.dropped))
            if not missing:
                break
            request = self._request(number, version, self._prompts.next(made.cursor, missing))
            self._add(made, request.prompts, self._rollouts.generate(request))
        if len(made.dropped) == len(made.prompts):
            made.dropped.clear()  # a step needs rows, even if their advantages are 0
        if len(made.prompts) > self._per_round:  # some estimators compare all completions of a round
            self.value(made.kept)
        self._cursor = made.cursor
        return made

    def _add(self, made: Round, prompts: Sequence[Prompt], completions: Sequence[RolloutCompletion]) -> None:
        """Score completions and add them to a round; with `dynamic_sample`, drop groups of equal rewards."""
        spreads = self._score(prompts, completions)
        first = len(made.prompts)
        made.prompts += prompts
        made.cursor += len(prompts)
        for completion in completions:
            completion.prompt += first
        made.completions += completions
        for index, spread in enumerate(spreads if self.options.dynamic_sample else ()):
            if spread <= 0:
                made.dropped[first + index] = "all completions have the same reward"

    def _score(self, prompts: Sequence[Prompt], completions: Sequence[RolloutCompletion]) -> list[float]:
        """Fill in rewards, and values derived from them; return the spread of each group's rewards in order."""
        if self.scorer is not None:
            self.scorer.score(prompts, completions)
        return self.value(completions)

    def _sample_of(self, prompt: Prompt, completion: RolloutCompletion) -> Encoded:
        """Return a row of a step."""
        known = {name: getattr(completion, name) for name in self.token_columns}
        values = {"rollout_logps": completion.logps, **{name: each for name, each in known.items() if each is not None}}
        weights = 1.0 if completion.learned else 0.0
        before, ids, own = completion.layout(prompt)
        return sample_of(prompt.number, before, ids, values, own=own, weights=weights)

    def _keep(self, made: Round) -> None:
        """Write a round, and its page, on the main process."""
        super()._keep(made)
        if made.number < ALL_PAGES or made.number % EVERY_PAGE == 0:
            page = path_of(self._folder, made.number, "html")
            replace_file(page, page_of(made, self._shown, self._trained_by(made)))

    def _trained_by(self, made: Round) -> dict[int, list[int]]:
        """Return the steps, counted from 1, that learn from each completion, by its index."""
        first = made.number * self._steps_per_round
        indices = {id(completion): index for index, completion in enumerate(made.completions)}
        steps: dict[int, list[int]] = {}
        for within in range(self._steps_per_round):
            for completion in self._of_step(made, within):
                steps.setdefault(indices[id(completion)], []).append(first + within + 1)
        return steps

    def _prefetch(self, number: int, version: int, *, synced: bool = False) -> None:
        """Begin sampling the next round with the weights at the beginning of this one, if rollouts may be stale.

        `synced`: these weights no longer exist, and all completions are in the rollout log.
        """
        if not self.options.rollout_staleness or (number + 1) * self._steps_per_round >= self.total_steps:
            return
        if not synced:
            self._rollouts.sync(version)
        elif self._written(number + 1, version, 0) is not None:
            return
        prompts = self._prompts.next(self._cursor, self._per_round)
        self._prefetched = PrefetchedRound(self._rollouts, self._request(number + 1, version, prompts))

    def _of_step(self, made: Round, within: int) -> list[RolloutCompletion]:
        """Return the completions that one of a round's steps learns from, the same on every process."""
        kept = made.kept
        return [kept[index] for index in indices_of_step(self._context, self.options, made.number, len(kept), within)]

    def _shown(self, ids: Sequence[int]) -> list[str]:
        """Return the text of single tokens."""
        return [str(self._context.tokenizer.decode([each])) for each in ids]


def _prompts_per_round(global_rows: int, options: OnlineOptions) -> int:
    """Return the number of prompts of a round; raise if its rows are not whole groups."""
    completions = global_rows * options.steps_per_pass
    prompts, rest = divmod(completions, options.num_generations)
    if rest:
        unit = options.num_generations // math.gcd(options.num_generations, options.steps_per_pass)
        raise ConfigError(
            f"A round of {completions} completions is not divisible into groups of {options.num_generations} "
            "(num_generations).",
            hint=f"Pass --global_batch_size {-(-global_rows // unit) * unit}, or another --num_generations.",
        )
    return prompts


def _check_settings(options: OnlineOptions) -> None:
    """Raise for settings that cannot be learned with, before any weights are loaded."""
    narrowed = options.top_p < 1 or options.top_k > 0
    if narrowed and (options.steps_per_round > 1 or options.rollout_staleness):
        raise ConfigError(
            "top_p and top_k bias the importance ratios of rounds that serve several steps or are stale.",
            hint="Leave --top_p and --top_k out.",
        )
    if options.rollout_staleness and options.dynamic_sample:
        raise ConfigError(
            "rollout_staleness 1 cannot be combined with dynamic_sample: the weights that the first completions were "
            "sampled with no longer exist when more are needed.",
            hint="Leave --dynamic_sample or --rollout_staleness out.",
        )

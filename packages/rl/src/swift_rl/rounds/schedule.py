"""The schedule of online learning: the model in training completes prompts, and steps learn from the completions."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.contracts import BatchSchedule
from swift.errors import CheckpointError, ConfigError
from swift_rl.audit import write_page
from swift_rl.health import Health
from swift_rl.rounds.batching import indices_of_step, rows_of
from swift_rl.rounds.data import Prompt, RolloutCompletion, Round
from swift_rl.rounds.files import FOLDER, path_of, read_round, write_round
from swift_rl.rounds.prompts import Prompts
from swift_rl.rounds.rollouts import GenerationRequest, PrefetchedRound, Rollouts
from swift_rl.rounds.scoring import on_main
from swift_rl.rounds.settings import check_settings, prompts_per_round
from swift_rl.rounds.values import Options, Valuer, figures

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift.data.batch import Batch, Row
    from swift_rl.options import OnlineOptions


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
"""Options that a resumed run may change without sampling a round again."""
_SHAPE = ("completion_length", "truncated")
"""Figures of completions besides their rewards."""


class RolloutSchedule(BatchSchedule):
    """Rounds of completions, each of which serves some steps.

    The objective's `valuer` gives tokens the values that the loss reads.
    """

    def __init__(
        self,
        context: ScheduleContext,
        options: Options,
        valuer: Callable[[ScheduleContext, Options, Sequence[str]], Valuer[Options]],
    ) -> None:
        self._context = context
        self._options: OnlineOptions = options
        if context.data.train is None:
            raise ConfigError("Online learning cannot stream its prompts.", hint="Leave --streaming out.")
        layout = context.layout
        self._prompts = Prompts(context.data.train, seed=layout.order_seed, shuffle=layout.shuffle)
        self._per_round = prompts_per_round(layout.global_rows, options)
        self._steps_per_round = options.steps_per_round
        rounds_per_epoch = max(1, len(self._prompts) // self._per_round)
        self.steps_per_epoch: int | None = rounds_per_epoch * self._steps_per_round
        self.total_steps = layout.max_steps or max(1, round(layout.epochs * self.steps_per_epoch))
        self._folder = context.folder / FOLDER
        self._rollouts = Rollouts(context, options, self._folder, self._prompts)
        held_out = context.data.validation
        self._held_out = None if held_out is None else Prompts(held_out, seed=0, shuffle=False)
        check_settings(context, options, [each.samples.lengths for each in (context.data.train, held_out) if each])
        self._valuer: Valuer[Any] = valuer(context, options, self._prompts.columns())
        names = self._valuer.names
        self.evaluation_metrics = (
            () if held_out is None or not names else ("reward", *(f"rewards/{name}" for name in names), *_SHAPE)
        )
        self._fingerprint = _fingerprint(options, self._prompts, context)
        self._round: Round | None = None
        self._prefetched: PrefetchedRound | None = None
        self._cursor = 0
        self._resumed: Mapping[str, Any] = {}
        self._health = Health(options.max_idle_rounds, context.say)
        for line in options.notes():
            context.say(line)
        self._first_step = 0
        """The first step of this process."""

    def epoch_at(self, step: int) -> float:
        """Return how many passes over the prompts are complete before this step."""
        return step / self._steps_per_round * self._per_round / len(self._prompts)

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the completions that a step learns from."""
        self._valuer.before_step(step)
        number, within = divmod(step, self._steps_per_round)
        if self._round is None or self._round.number != number:
            self._round = self._begin(number, step, within)
            self._valuer.begin(self._round)
        rows = self._rows(self._round, within)
        batch = replace(self._context.batch(step, rows, data_rank, data_size), temperature=self._options.temperature)
        return batch if batch.weight else replace(batch, weight=1.0)

    def train_roles(self, step: int, batch: Batch) -> Mapping[str, float]:
        """Make the steps of the objective's other models."""
        return self._valuer.train_roles(step, batch)

    def learning_rate(self, step: int, planned: float) -> float:
        """Return the policy's learning rate at a step, which the schedule has planned."""
        return self._valuer.learning_rate(step, planned)

    def metrics(self, step: int) -> Mapping[str, float]:
        """Return the figures of the round that a step belongs to."""
        return {} if self._round is None else self._round.facts

    def evaluate(self, step: int) -> Mapping[str, float]:
        """Complete the held-out prompts with the current weights, and return the mean rewards."""
        assert self._held_out is not None
        if self._prefetched is not None:
            self._prefetched.wait()
        self._rollouts.sync(step)
        options = self._options
        sampling = self._rollouts.sampling(self._context.config.train.seed + 1, options.eval_temperature)
        prompts = self._held_out.all()
        request = GenerationRequest(-1, step, prompts, options.num_generations_eval, sampling)
        completions = self._rollouts.generate(request, keep=False)
        self._valuer.score(prompts, completions)
        self._valuer.value(completions)
        found = figures(completions, self._valuer.names)
        return {name: found.get(name, 0.0) for name in self.evaluation_metrics or ()}

    def state(self) -> Mapping[str, Any]:
        """Return the run's position in its prompts, once all completions that were begun are in the rollout log."""
        if self._prefetched is not None:
            self._prefetched.wait()
        if self._round is None:
            return dict(self._resumed)
        return {
            "round": self._round.number,
            "version": self._round.version,
            "cursor": self._cursor,
            "folder": str(self._folder.absolute()),
            "prefetched": None if self._prefetched is None else self._prefetched.request.version,
            **({"values": dict(values)} if (values := self._valuer.state()) else {}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._resumed = dict(state)
        if before := state.get("folder"):
            self._rollouts.resumed_from = Path(before)
        self._cursor = int(state.get("cursor", 0))
        self._valuer.restore(state.get("values", {}))

    def close(self) -> None:
        """End engines and the processes of rewards."""
        try:
            if self._prefetched is not None:
                self._prefetched.wait()
        finally:
            self._prefetched = None
            self._rollouts.close()
            self._valuer.close()

    # Rounds

    def _begin(self, number: int, step: int, within: int) -> Round:
        """Return a round, from its files if the run was resumed, else newly made."""
        version = step - within
        self._first_step = step if self._round is None else self._first_step
        known = on_main(self._context, lambda: self._written(number, version, within))
        if known is not None:
            self._cursor = known.cursor
            self._prefetch(number, version, synced=bool(within))
            return known
        if within:
            raise CheckpointError(
                f"The files of round {number + 1}, which step {step + 1} learns from, are missing under "
                f"{self._folder}.",
                hint="Resume from a checkpoint at the end of a round, or restore the run's rollouts folder.",
            )
        begun = time.monotonic()
        made = self._sample(number, version)
        self._prefetch(number, version)
        sampled = time.monotonic()
        self._valuer.fill(made, version, self._rollouts.probed)
        made.facts |= {"seconds_generating": sampled - begun, "seconds_scoring": time.monotonic() - sampled}
        on_main(self._context, lambda: self._keep(made))
        self._health.look(made)
        return made

    def _written(self, number: int, version: int, within: int) -> Round | None:
        """Return a round that this run, or the run that it resumes, has written.

        Rounds of the other run count only if sampled before this one began: it may have continued differently.
        """
        sampled_by = self._version_of(number, version)
        before = self._rollouts.resumed_from
        folders = [self._folder, *([before] if before is not None and sampled_by <= self._first_step else ())]
        for folder in folders:
            known = read_round(folder, number, None if within else self._fingerprint)
            if known is not None and known.version == sampled_by:
                return known
        return None

    def _version_of(self, number: int, version: int) -> int:
        """Return the step whose weights sample a round that begins at the step `version`."""
        behind = self._options.rollout_staleness * self._steps_per_round
        return max(0, version - behind)

    def _request(self, number: int, version: int, prompts: Sequence[Prompt]) -> GenerationRequest:
        sampling = self._rollouts.sampling(self._context.config.train.seed, self._options.temperature)
        given = self._valuer.given(number, prompts)
        return GenerationRequest(number, version, prompts, self._options.num_generations, sampling, given)

    def _sample(self, number: int, step: int) -> Round:
        """Return the scored completions of the next prompts, without values of the model in training."""
        version = self._version_of(number, step)
        if self._prefetched is None and version == step:
            self._rollouts.sync(step)
        made = Round(number, version, [], [], cursor=self._cursor)
        request = self._request(number, version, self._prompts.next(made.cursor, self._per_round))
        if self._prefetched is not None:
            completions, self._prefetched = self._prefetched.completions(), None
        else:
            completions = self._rollouts.generate(request)
        self._add(made, request.prompts, completions)
        for _ in range(self._options.max_resample_times if self._options.dynamic_sample else 0):
            missing = self._per_round - (len(made.prompts) - len(made.dropped))
            if not missing:
                break
            request = self._request(number, version, self._prompts.next(made.cursor, missing))
            self._add(made, request.prompts, self._rollouts.generate(request))
        if len(made.dropped) == len(made.prompts):
            made.dropped.clear()  # a step needs rows, even if their advantages are 0
        if len(made.prompts) > self._per_round:  # some estimators compare all completions of a round
            self._valuer.value([completion for completion in made.completions if completion.prompt not in made.dropped])
        self._cursor = made.cursor
        return made

    def _add(self, made: Round, prompts: Sequence[Prompt], completions: Sequence[RolloutCompletion]) -> None:
        """Score completions and add them to a round; with `dynamic_sample`, drop groups of equal rewards."""
        self._valuer.score(prompts, completions)
        spreads = self._valuer.value(completions)
        first = len(made.prompts)
        made.prompts += prompts
        made.cursor += len(prompts)
        for completion in completions:
            completion.prompt += first
        made.completions += completions
        for index, spread in enumerate(spreads if self._options.dynamic_sample else ()):
            if spread <= 0:
                made.dropped[first + index] = "all completions have the same reward"

    def _keep(self, made: Round) -> None:
        write_round(self._folder, made, self._fingerprint)
        self._rollouts.forget(made.number)
        if made.number < ALL_PAGES or made.number % EVERY_PAGE == 0:
            page = path_of(self._folder, made.number, "html")
            write_page(page, made, pieces=lambda ids: _shown(self._context, ids), trained_by=self._trained_by(made))

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
        if not self._options.rollout_staleness or (number + 1) * self._steps_per_round >= self.total_steps:
            return
        if not synced:
            self._rollouts.sync(version)
        elif on_main(self._context, lambda: self._written(number + 1, version + self._steps_per_round, 0) is not None):
            return
        prompts = self._prompts.next(self._cursor, self._per_round)
        self._prefetched = PrefetchedRound(self._rollouts, self._request(number + 1, version, prompts))

    # Rows

    def _of_step(self, made: Round, within: int) -> list[RolloutCompletion]:
        """Return the completions that one of a round's steps learns from, the same on every process."""
        taken = [completion for completion in made.completions if completion.prompt not in made.dropped]
        return [
            taken[index] for index in indices_of_step(self._context, self._options, made.number, len(taken), within)
        ]

    def _rows(self, made: Round, within: int) -> list[Row]:
        """Return the rows of one of a round's steps, the same on every process."""
        completions = self._of_step(made, within)
        samples = [self._valuer.sample(made.prompts[completion.prompt], completion) for completion in completions]
        return [tuple(samples[index] for index in each) for each in rows_of(self._context, samples)]


def _shown(context: ScheduleContext, ids: Sequence[int]) -> list[str]:
    """Return the text of single tokens."""
    return [str(context.tokenizer.decode([each])) for each in ids]


def _fingerprint(options: OnlineOptions, prompts: Prompts, context: ScheduleContext) -> str:
    """Return a hash of everything that determines a round besides the weights."""
    held = [
        options.model_dump(mode="json", exclude=set(_HARMLESS)),
        prompts.fingerprint,
        context.layout.global_rows,
        context.config.train.seed,
    ]
    return hashlib.sha256(json.dumps(held, sort_keys=True, default=str).encode()).hexdigest()

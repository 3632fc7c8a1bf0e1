"""Schedules whose steps learn from rounds of completions, which are kept in files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.contracts import BatchSchedule
from swift.errors import CheckpointError, ConfigError
from swift_rl.rounds.batching import rows_of
from swift_rl.rounds.files import FOLDER, RolloutLog, read_round, write_round
from swift_rl.rounds.prompts import Prompts
from swift_rl.rounds.rollouts import GenerationRequest, Rollouts
from swift_rl.rounds.scoring import on_main

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift.data import Prepared
    from swift.data.batch import Batch
    from swift.data.samples import Encoded
    from swift_rl.rollout_options import GenerationOptions
    from swift_rl.rounds.data import Prompt, RolloutCompletion, Round


class Rounds(BatchSchedule):
    """Rounds of completions, each of which serves some steps. All methods are called on every process."""

    prompts_model: type[Prompts] = Prompts

    def __init__(
        self,
        context: ScheduleContext,
        options: GenerationOptions,
        train: Prepared,
        *,
        prompts_per_round: int,
        steps_per_round: int,
        harmless: Collection[str],
    ) -> None:
        """`harmless` are the options that a resumed run may change without sampling a round again."""
        self._context = context
        layout, held_out = context.layout, context.data.validation
        self._prompts = self.prompts_model(train, seed=layout.order_seed, shuffle=layout.shuffle)
        self._held_out = None if held_out is None else self.prompts_model(held_out, seed=0, shuffle=False)
        self._check_room(options.max_completion_length)
        self._per_round = prompts_per_round
        self._steps_per_round = steps_per_round
        self.steps_per_epoch: int | None = max(1, len(self._prompts) // prompts_per_round) * steps_per_round
        self.total_steps = layout.max_steps or max(1, round(layout.epochs * self.steps_per_epoch))
        self._folder = context.folder / FOLDER
        self._rollouts = Rollouts(context, options, self._folder, self._prompts)
        determines_a_round = [
            options.model_dump(mode="json", exclude={*harmless}),
            self._prompts.fingerprint,
            layout.global_rows,
            context.config.train.seed,
        ]
        whole = json.dumps(determines_a_round, sort_keys=True, default=str)
        self._fingerprint = hashlib.sha256(whole.encode()).hexdigest()
        """Of everything that determines a round besides the weights."""
        self._first_step: int | None = None
        """The first step of this process."""

    def epoch_at(self, step: int) -> float:
        """Return how many passes over the prompts are complete before this step."""
        return step / self._steps_per_round * self._per_round / len(self._prompts)

    def state(self) -> Mapping[str, Any]:
        """Return the folder of the rounds."""
        return {"folder": str(self._folder.absolute())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        if before := state.get("folder"):
            self._rollouts.resumed_from = Path(before)

    def close(self) -> None:
        """Close the engine of the rollouts."""
        self._rollouts.close()

    # For subclasses

    def _position(self, step: int) -> tuple[int, int]:
        """Return the number of the round that a step learns from, and the number of the step in it."""
        self._first_step = step if self._first_step is None else self._first_step
        return divmod(step, self._steps_per_round)

    def _batch(self, step: int, samples: Sequence[Encoded], data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the samples that a step learns from."""
        rows = [tuple(samples[index] for index in row) for row in rows_of(self._context, samples)]
        batch = self._context.batch(step, rows, data_rank, data_size)
        return batch if batch.weight else replace(batch, weight=1.0)

    def _complete_held_out(
        self, step: int, temperature: float, generations: int
    ) -> tuple[Sequence[Prompt], list[RolloutCompletion]]:
        """Return the held-out prompts, and their completions with the current weights."""
        assert self._held_out is not None
        self._rollouts.sync(step)
        prompts = self._held_out.all()
        sampling = self._rollouts.sampling(self._context.config.train.seed + 1, temperature)
        request = GenerationRequest(-1, step, prompts, generations, sampling)
        return prompts, self._rollouts.generate(request, keep=False)

    def _written(self, number: int, version: int, within: int) -> Round | None:
        """Return a round sampled with the weights of `version` that this run, or the run that it resumes, has written.

        Rounds of the other run count only if sampled before this one began: it may have continued differently.
        """

        def found() -> Round | None:
            before = self._rollouts.resumed_from
            resumed = before is not None and version <= (self._first_step or 0)
            for folder in (self._folder, before) if resumed else (self._folder,):
                known = None if folder is None else read_round(folder, number, None if within else self._fingerprint)
                if known is not None and known.version == version:
                    return known
            return None

        return on_main(self._context, found)

    def _lost(self, number: int, step: int) -> CheckpointError:
        return CheckpointError(
            f"The files of round {number + 1}, which step {step + 1} learns from, are missing under {self._folder}.",
            hint="Resume from a checkpoint at the end of a round, or restore the run's rollouts folder.",
        )

    def _keep(self, made: Round) -> None:
        """Write a round on the main process, and delete its rollout log."""
        write_round(self._folder, made, self._fingerprint)
        RolloutLog(self._folder, made.number, 0, 0).clear()

    def _check_room(self, completion: int) -> None:
        """Raise for prompts that leave too few positions of the model for a completion, before weights are loaded."""
        positions = getattr(self._context.source.config.get_text_config(), "max_position_embeddings", None)
        longest = max(int(each.lengths().max()) for each in (self._prompts, self._held_out) if each)
        if positions is not None and longest + completion > positions:
            raise ConfigError(
                f"The longest prompt ({longest} tokens) plus max_completion_length ({completion}) exceeds the model's "
                f"{positions} positions.",
                hint=f"Pass --max_completion_length {max(1, positions - longest)}, or a smaller --max_length to "
                "drop longer prompts.",
            )

"""Log-probabilities of completions under the reference: the model without its adapters, or before training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift.errors import ConfigError
from swift.toolkit import heartbeat
from swift_infer import open_engine
from swift_rl.roles import REFERENCE, is_apart
from swift_rl.rounds.logps import TokenLogps

if TYPE_CHECKING:
    from swift.contracts import InferenceEngine, ScheduleContext
    from swift.data.samples import Encoded
    from swift_rl.options import OnlineOptions
    from swift_rl.rounds.values import KeptCompletions


class RunReference:
    """The reference of a run whose loss or rewards hold a KL term.

    If only new adapters are trained, it is the model with them switched off. Otherwise it is a frozen role, in the
    precision and on the processes of the model in training. On a backend that holds one model only, every process opens
    the model again in an inference engine and scores a part of the completions.
    """

    def __init__(self, context: ScheduleContext, options: OnlineOptions) -> None:
        self._context = context
        self._options = options
        self._in_role = REFERENCE in context.roles
        self._in_engine = is_apart(context.config) and not self._in_role
        self._engine: InferenceEngine | None = None
        if self._in_engine and options.temperature != 1.0:
            raise ConfigError(
                f"The {context.config.backend.name} backend scores the reference at temperature 1 only, but "
                f"--temperature is {options.temperature}.",
                hint="Pass --temperature 1, train adapters (--train_type lora), or leave the KL divergence out.",
            )

    def before_step(self, step: int) -> None:
        """Let the reference follow the policy every `ref_model_sync_steps`. Called on every process."""
        options = self._options
        if options.sync_ref_model and step and step % options.ref_model_sync_steps == 0:
            self._context.role(REFERENCE).follow(options.ref_model_mixup_alpha)

    def logps(self, kept: KeptCompletions) -> list[np.ndarray]:
        """Return the log-probabilities of the tokens of completions. Called on every process."""
        if self._in_engine:
            return kept.of_completions(self._by_engine(kept.samples))
        objective = TokenLogps(adapters_off=not self._in_role)
        forward = self._context.role(REFERENCE).forward if self._in_role else None
        return kept.evaluate(objective, temperature=self._options.temperature, forward=forward)["logps"]

    def _by_engine(self, samples: Sequence[Encoded]) -> list[np.ndarray]:
        if self._engine is None:
            model = self._context.config.model
            self._engine = open_engine(
                "transformers",
                self._context.model,
                adapter=self._context.config.tuner.adapter,
                dtype=model.dtype,
                device=self._context.topology.device,
                trust_remote_code=model.trust_remote_code,
            )
        world = self._context.topology.world
        mine = range(world.rank, len(samples), world.size)
        sequences = [samples[index].segments[0].input_ids.tolist() for index in mine]
        scored = {}
        for index, score in self._engine.score(sequences):
            heartbeat()
            scored[mine[index]] = np.array([0.0, *score.logprobs], dtype=np.float32)
        everyone = {index: each for part in self._context.comms.gather(scored) for index, each in part.items()}
        return [everyone[index] for index in range(len(samples))]

    def close(self) -> None:
        """Close the second model."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

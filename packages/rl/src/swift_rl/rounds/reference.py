"""Log-probabilities of answers under the reference: the model without its adapters, or as it was before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift.errors import ConfigError
from swift.infer import open_engine
from swift.toolkit import heartbeat
from swift_rl.rounds.logps import TokenLogps

if TYPE_CHECKING:
    from swift.contracts import InferenceEngine, PlanContext
    from swift.data.samples import Encoded
    from swift_rl.options import GrpoOptions

Ask = Callable[[TokenLogps], list[Mapping[str, np.ndarray]]]


class RunReference:
    """The reference of a run whose loss or rewards hold a KL term.

    Where new adapters are trained and nothing else, it is the model with them switched off. Otherwise every process has
    the model a second time, as it was before training, and scores a share of the answers.
    """

    def __init__(self, context: PlanContext, options: GrpoOptions) -> None:
        self._context = context
        tuner = context.config.tuner
        biases = getattr(tuner, "bias", "none") != "none"  # they stay as they are trained when adapters are off
        self._is_apart = tuner.kind == "full" or tuner.adapter is not None or biases
        self._engine: InferenceEngine | None = None
        if self._is_apart and options.temperature != 1.0:
            raise ConfigError(
                "A reference beside the model in training scores at temperature 1, and answers are drawn at "
                f"{options.temperature}.",
                hint="Train adapters (--train_type lora), leave the KL out (--beta 0), or draw at --temperature 1.",
            )

    def logps(self, samples: Sequence[Encoded], ask: Ask) -> list[np.ndarray]:
        """Return the log-probabilities of each sample's tokens. Called on every process."""
        if not self._is_apart:
            return [values["logps"] for values in ask(TokenLogps(adapters_off=True))]
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
        asked = [samples[index].segments[0].input_ids.tolist() for index in mine]
        scored = {}
        for place, score in self._engine.score(asked):
            heartbeat()
            scored[mine[place]] = np.array([0.0, *score.logprobs], dtype=np.float32)
        everyone = {index: each for part in self._context.comms.gather(scored) for index, each in part.items()}
        return [everyone[index] for index in range(len(samples))]

    def close(self) -> None:
        """Give the second model back."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

"""Log-probabilities of answers under the reference: the model without its adapters, or as it was before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift.contracts import ModelRole
from swift.errors import ConfigError
from swift.infer import open_engine
from swift.toolkit import ends_when_off, heartbeat, tuner_of
from swift_rl.rounds.logps import TokenLogps, values_of_answers

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift.contracts import InferenceEngine, PlanContext
    from swift.data.samples import Encoded
    from swift_rl.policy_options import KlOptions
    from swift_rl.rounds.values import TakenAnswers

Ask = Callable[[TokenLogps], list[Mapping[str, np.ndarray]]]

REFERENCE = "reference"
"""The role of the model as it was before training."""


def is_apart(config: Config) -> bool:
    """Return whether the reference is a model of its own: other weights are trained than new adapters alone."""
    return not ends_when_off(config.tuner)


def reference_roles(config: Config, options: KlOptions) -> list[ModelRole]:
    """Return the role that the reference is, where it is a model of its own: frozen, or following the policy.

    A run that continues from an adapter has that adapter, as it began, for its reference; one on weights of few bits
    has these.
    """
    if options.sync_ref_model:
        _check_follows(config)
    if not is_apart(config):
        return []
    begun = config.tuner if config.tuner.adapter is not None or config.tuner.quantize != "none" else None
    model = config.model.model_copy(update={"value_head": False})
    follows = options.sync_ref_model  # which an inference engine in place of the role could not
    return [ModelRole(REFERENCE, model, tuner=begun, trained=False, follows=follows, optional=not follows)]


def _check_follows(config: Config) -> None:
    """Raise `ConfigError` where there are no weights that could follow those of the policy."""
    if not is_apart(config):
        raise ConfigError(
            "sync_ref_model moves the weights of the reference, and where new adapters are trained the reference is "
            "the policy's own model with them switched off: it has no weights that could move.",
            hint="Type --train_type full, or leave --sync_ref_model out.",
        )
    if tuner_of(config.tuner).adapter:
        raise ConfigError(
            "sync_ref_model mixes weights, and a mixture of the matrices of two adapters is not the mixture of the "
            "models that they make.",
            hint="Type --train_type full, or leave --sync_ref_model out.",
        )


class RunReference:
    """The reference of a run whose loss or rewards hold a KL term.

    Where new adapters are trained and nothing else, it is the model with them switched off. Otherwise it is a frozen
    role, in the precision and on the processes of the model in training; on a backend that holds one model only, every
    process has the model a second time in an inference engine, and scores a share of the answers.
    """

    def __init__(self, context: PlanContext, temperature: float) -> None:
        self._context = context
        self._temperature = temperature
        self._is_apart = is_apart(context.config)
        self._engine: InferenceEngine | None = None
        if self._is_apart and REFERENCE not in context.roles and temperature != 1.0:
            raise ConfigError(
                f"The {context.config.backend.name} backend holds one model, so that the reference is scored beside it "
                f"at temperature 1, and answers are drawn at {temperature}.",
                hint="Train adapters (--train_type lora), leave the KL out, or draw at --temperature 1.",
            )

    def before_step(self, step: int, options: KlOptions) -> None:
        """Let the reference follow the policy, where it is time after so many steps. Called on every process."""
        if options.sync_ref_model and step and step % options.ref_model_sync_steps == 0:
            self._context.role(REFERENCE).follow(options.ref_model_mixup_alpha)

    def logps(self, taken: TakenAnswers, ask: Ask) -> list[np.ndarray]:
        """Return the log-probabilities of each sample's tokens. Called on every process."""
        if not self._is_apart:
            return [values["logps"] for values in ask(TokenLogps(adapters_off=True))]
        if REFERENCE not in self._context.roles:
            return self._by_engine(taken.samples)
        role = self._context.role(REFERENCE)
        scored = values_of_answers(
            self._context,
            taken.samples,
            TokenLogps(),
            temperature=self._temperature,
            forward=role.forward,
            batches=taken.batches,
        )
        return [values["logps"] for values in scored]

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

"""Log-probabilities of answers under the model in training, or its reference, on whichever backend trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from swift import LossSums, Need, Section
from swift.contracts import ForwardResult, ModelView, Objective, PlanContext
from swift.data.samples import Encoded, Segment
from swift.objectives.base import BaseObjective, viewed

if TYPE_CHECKING:
    from swift.data.batch import Batch, MicroBatch


class TokenLogps(BaseObjective[Section]):
    """No loss: the log-probability of every learned token, and the entropy where it is asked for."""

    name = "token_logps"

    def __init__(self, *, adapters_off: bool = False, entropy: bool = False) -> None:
        super().__init__(Section())
        self.adapters_off = adapters_off
        self.needs = frozenset({Need.TOKEN_LOGPS, *([Need.TOKEN_ENTROPY] if entropy else ())})

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the values of tokens, and a loss of 0."""
        logps = viewed(view.token_logps, Need.TOKEN_LOGPS)
        tokens = {"logps": logps * (batch.weights > 0)}
        if view.token_entropy is not None:
            tokens["entropies"] = view.token_entropy
        return LossSums(loss=logps.sum() * 0.0, tokens=tokens)


def values_of_answers(
    context: PlanContext,
    samples: Sequence[Encoded],
    objective: Objective,
    *,
    temperature: float,
    forward: Callable[[Batch, Objective], ForwardResult] | None = None,
) -> list[Mapping[str, np.ndarray]]:
    """Return the values of each sample's tokens, in order, the same on every process. Called on every process.

    `forward` is that of another model of the run than the one in training.
    """
    order = sorted(range(len(samples)), key=lambda index: -len(samples[index].segments[0]))
    rows = [(samples[index],) for index in order]
    topology = context.topology
    batch = replace(context.batch(0, rows, topology.data_rank, topology.data_size), temperature=temperature)
    mine = list((forward or context.forward)(batch, objective).tokens or ())
    # Processes that share a slice have the same values.
    slices = dict(context.comms.gather((topology.data_rank, mine)))
    sorted_values = [values for rank in sorted(slices) for values in slices[rank]][: len(samples)]
    found: list[Mapping[str, np.ndarray]] = [{}] * len(samples)
    for index, values in zip(order, sorted_values, strict=True):
        found[index] = values
    return found


def sample_of(
    number: int,
    prompt: np.ndarray,
    answer: np.ndarray,
    values: Mapping[str, np.ndarray],
    *,
    own: np.ndarray | None = None,
    weights: np.ndarray | float = 1.0,
) -> Encoded:
    """Return a prompt and its answer as a sample, with weights and values of the answer's own tokens.

    `own` says which these are, where others stand between them.
    """
    ids = np.concatenate([prompt, answer]).astype(np.int32)
    start = len(prompt)

    def placed(tokens: np.ndarray | float) -> np.ndarray:
        whole = np.zeros(len(ids), dtype=np.float32)
        whole[start:][slice(None) if own is None else own] = tokens
        return whole

    segment = Segment(ids, placed(weights), {name: placed(value) for name, value in values.items()})
    return Encoded(number, (segment,))

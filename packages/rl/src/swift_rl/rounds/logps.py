"""Log-probabilities of completions under the model in training or its reference, on any backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from swift import LossSums, Need, Section
from swift.contracts import ForwardResult, ModelView, Objective, ScheduleContext
from swift.data.samples import Encoded, Segment
from swift.objectives.base import PerSampleObjective, viewed
from swift_rl.rounds.batching import rows_of

if TYPE_CHECKING:
    from swift.data.batch import Batch, MicroBatch


class TokenLogps(PerSampleObjective[Section]):
    """The log-probability, and on request the entropy, of every learned token; its loss is 0."""

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


def values_of_completions(
    context: ScheduleContext,
    samples: Sequence[Encoded],
    objective: Objective,
    *,
    temperature: float,
    forward: Callable[[Batch, Objective], ForwardResult] | None = None,
    batches: Sequence[Sequence[int]] | None = None,
) -> list[Mapping[str, np.ndarray]]:
    """Return the values of each sample's tokens, in order, the same on every process. Called on every process.

    `forward` runs another model than the one in training. `batches` are those in which steps learn from the samples, as
    indices: the values then equal those of the step to the last bit. Without them samples of similar length share a
    batch.
    """
    if batches is None:
        batches = [sorted(range(len(samples)), key=lambda index: -len(samples[index].segments[0]))]
        rows_in = [[[index] for index in batches[0]]]
    else:
        rows_in = [
            [[batch[index] for index in row] for row in rows_of(context, [samples[index] for index in batch])]
            for batch in batches
        ]
    topology = context.topology
    found: list[Mapping[str, np.ndarray]] = [{}] * len(samples)
    for rows in rows_in:
        arranged = [tuple(samples[index] for index in row) for row in rows]
        batch = replace(context.batch(0, arranged, topology.data_rank, topology.data_size), temperature=temperature)
        mine = list((forward or context.forward)(batch, objective).tokens or ())
        # Processes that share a slice have the same values.
        slices = dict(context.comms.gather((topology.data_rank, mine)))
        scored = [values for rank in sorted(slices) for values in slices[rank]]
        order = [index for row in rows for index in row]
        for index, values in zip(order, scored[: len(order)], strict=True):
            found[index] = values
    return found


def sample_of(
    number: int,
    prompt: np.ndarray,
    completion: np.ndarray,
    values: Mapping[str, np.ndarray],
    *,
    own: np.ndarray | None = None,
    weights: np.ndarray | float = 1.0,
) -> Encoded:
    """Return a prompt and its completion as a sample, with weights and values of the completion's own tokens.

    `own` marks them if the environment's tokens are between them.
    """
    ids = np.concatenate([prompt, completion]).astype(np.int32)
    start = len(prompt)

    def aligned(tokens: np.ndarray | float) -> np.ndarray:
        whole = np.zeros(len(ids), dtype=np.float32)
        whole[start:][slice(None) if own is None else own] = tokens
        return whole

    segment = Segment(ids, aligned(weights), {name: aligned(value) for name, value in values.items()})
    return Encoded(number, (segment,))

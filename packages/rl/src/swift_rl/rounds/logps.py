"""Log-probabilities of answers under the model in training, or its reference, on whichever backend trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from swift import LossSums, Need, Section
from swift.contracts import ForwardResult, ModelView, Objective, ScheduleContext
from swift.data.samples import Encoded, Segment
from swift.objectives.base import PerSampleObjective, viewed
from swift_rl.rounds.dealing import rows_of

if TYPE_CHECKING:
    from swift.data.batch import Batch, MicroBatch


class TokenLogps(PerSampleObjective[Section]):
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
    context: ScheduleContext,
    samples: Sequence[Encoded],
    objective: Objective,
    *,
    temperature: float,
    forward: Callable[[Batch, Objective], ForwardResult] | None = None,
    batches: Sequence[Sequence[int]] | None = None,
) -> list[Mapping[str, np.ndarray]]:
    """Return the values of each sample's tokens, in order, the same on every process. Called on every process.

    `forward` is that of another model of the run than the one in training. `batches` are those in which steps learn
    from the samples, as indices: a model says exactly what it will say in the step then, to the last bit. Without
    them samples of one length are asked about together.
    """
    if batches is None:
        batches = [sorted(range(len(samples)), key=lambda index: -len(samples[index].segments[0]))]
        rows_in = [[[index] for index in batches[0]]]
    else:
        rows_in = [
            [[batch[place] for place in row] for row in rows_of(context, [samples[index] for index in batch])]
            for batch in batches
        ]
    found: list[Mapping[str, np.ndarray]] = [{}] * len(samples)
    for rows in rows_in:
        told = _told(context, samples, rows, objective, temperature=temperature, forward=forward or context.forward)
        for index, values in zip((index for row in rows for index in row), told, strict=True):
            found[index] = values
    return found


def _told(
    context: ScheduleContext,
    samples: Sequence[Encoded],
    rows: Sequence[Sequence[int]],
    objective: Objective,
    *,
    temperature: float,
    forward: Callable[[Batch, Objective], ForwardResult],
) -> list[Mapping[str, np.ndarray]]:
    """Return the values of the samples in the rows of a batch, in the order of the rows."""
    topology = context.topology
    laid = [tuple(samples[index] for index in row) for row in rows]
    batch = replace(context.batch(0, laid, topology.data_rank, topology.data_size), temperature=temperature)
    mine = list(forward(batch, objective).tokens or ())
    # Processes that share a slice have the same values.
    slices = dict(context.comms.gather((topology.data_rank, mine)))
    return [values for rank in sorted(slices) for values in slices[rank]][: sum(len(row) for row in rows)]


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

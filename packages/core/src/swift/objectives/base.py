"""Bases of objectives, and the arithmetic of segments.

Objectives never import torch when they are imported, so that `swift sft --help` can list their options quickly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from swift.config.sections import Section
from swift.contracts import ModelView, Need, Objective

if TYPE_CHECKING:
    import torch

    from swift.data.batch import MicroBatch
    from swift.data.samples import SampleFacts

Options = TypeVar("Options", bound=Section)


class BaseObjective(Objective, Generic[Options]):
    """An objective with options: a subclass names them by `options_model`, a `Section` with described fields."""

    options_model: ClassVar[type[Section]] = Section

    def __init__(self, options: Options) -> None:
        self.options = options


class PerSampleObjective(BaseObjective[Options]):
    """Base of objectives whose loss is a mean over samples."""

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """Return the number of samples that have something to learn."""
        return float(sum(sample.loss_weight > 0 for sample in samples))


class PerTokenObjective(BaseObjective[Options]):
    """Base of objectives whose loss is a mean over tokens."""

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """Return the sum of the tokens' weights."""
        return float(sum(sample.loss_weight for sample in samples))


def viewed(tensor: torch.Tensor | None, need: Need) -> torch.Tensor:
    """Return the tensor that a backend promised to supply for `need`."""
    if tensor is None:
        raise ValueError(f"the backend returned no {need.value}, which the objective needs")
    return tensor


def segment_logps(view: ModelView, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Per segment: the summed log-probability of the targets that count, and how many they are.

    A target counts or it doesn't: fractional weights are for likelihood objectives.
    """
    counts = (batch.weights > 0).float()
    logps = viewed(view.token_logps, Need.TOKEN_LOGPS)
    return batch.segment_sum(logps * counts), batch.segment_sum(counts)


def log_sigmoid(values: torch.Tensor) -> torch.Tensor:
    """Return log σ(x), stable at both ends."""
    from torch.nn.functional import logsigmoid

    return logsigmoid(values)

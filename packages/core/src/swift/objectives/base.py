"""Base of all objectives: their members with the usual values, and the arithmetic of segments.

Objectives never import torch when they are imported, so that `swift sft --help` can list their options quickly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from swift.config.sections import Section
from swift.contracts import LossSums, ModelView, Need, Objective

if TYPE_CHECKING:
    import torch

    from swift.data.batch import MicroBatch
    from swift.data.encodings import Encoding
    from swift.data.samples import SampleFacts

Options = TypeVar("Options", bound=Section)


class BaseObjective(ABC, Generic[Options]):
    """The members of `swift.contracts.Objective`; a subclass adds `loss`, `row_weight` and whatever differs.

    A subclass names its options by `options_model`, a `Section` with described fields.
    """

    options_model: ClassVar[type[Section]] = Section
    name: str
    needs: frozenset[Need] = frozenset({Need.TOKEN_LOGPS})
    encoding: str | Encoding = "chat"
    task: str = "causal_lm"
    num_labels: int | None = None
    adapters_off: bool = False
    baseline: Objective | None = None
    candidates: tuple[int, ...] = ()

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """Return how much these samples weigh: the sum of losses of the global batch is divided by it.

        There is no default: the number of samples divides a loss per token wrongly, and the other way round.
        """

    @abstractmethod
    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sums over one micro-batch."""

    def with_baseline(self, metrics: Mapping[str, float]) -> Objective:
        """Return this objective itself: without a baseline there is nothing to fill in."""
        return self

    def for_tokenizer(self, tokenizer: Any) -> Objective:
        """Return this objective itself: it is the same for every tokenizer."""
        return self


class PerSampleObjective(BaseObjective[Options]):
    """Base of objectives whose loss is a mean over samples."""

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """Return the number of samples that have something to learn."""
        return float(sum(sample.loss_weight > 0 for sample in samples))


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

"""Records and facts that observers receive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swift.contracts.backend import StepResult


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step by what they were spent on, a mean over processes and over the steps that were measured.

    - `seconds`: Of the step from its beginning to its end.
    - `communication`: In collectives while nothing is computed: transfers, and waiting for slower processes.
    - `data`: Waiting for the batch, and for images to be decoded.
    - `optimizer`: From `swift.toolkit.before_update` to the end of the backend's step, its communication left out.
    """

    seconds: float
    communication: float
    data: float
    optimizer: float

    @property
    def compute(self) -> float:
        """Return the rest of the step: forward and backward passes, and Python between them."""
        return max(0.0, self.seconds - self.communication - self.data - self.optimizer)

    @property
    def fractions(self) -> dict[str, float]:
        """Parts of the step by name: 'compute', 'communication', 'data', 'optimizer'. Their sum is 1."""
        whole = self.compute + self.communication + self.data + self.optimizer
        names = ("compute", "communication", "data", "optimizer")
        return {name: getattr(self, name) / whole if whole else 0.0 for name in names}


@dataclass(frozen=True)
class RankFacts:
    """Facts that one process measured in the steps since the logged one before; times are means per step.

    - `memory_gib`: The most that it has needed so far.
    - `own_seconds`: Of a step, what it did not spend in communication; None where no step was measured.
    """

    rank: int
    host: str
    seconds: float
    data_seconds: float
    memory_gib: float
    own_seconds: float | None = None
    communication_seconds: float | None = None


@dataclass(frozen=True)
class StepRecord:
    """Record that observers receive after each optimizer step.

    - `tokens`: Real tokens of the global batch (padding left out).
    - `padded_tokens`: Tokens that went through the model, padding included.
    - `seconds`: Wall-clock seconds of this step, waiting for data included.
    - `evaluation_before`: Evaluation before this step, which is the first of its session (`train.eval_on_start`).
    - `time_breakdown`: Where the time of steps went, on a logged step, if one was measured since the logged one before.
    - `ranks`: What each process measured, on a logged step of a run with several: all of them, or those with the
      longest `own_seconds` where there are very many.
    - `slowest`: The process that has computed much longer than the median one in several measured steps in a row.
    """

    step: int
    total_steps: int
    epoch: float
    result: StepResult
    tokens: int
    padded_tokens: int
    seconds: float
    data_seconds: float
    evaluation: Mapping[str, float] | None = None
    memory_gib: float = 0.0
    evaluation_before: Mapping[str, float] | None = None
    time_breakdown: StepTimes | None = None
    ranks: Sequence[RankFacts] = ()
    slowest: RankFacts | None = None


@dataclass(frozen=True)
class RunSummary:
    """Record that observers receive at the end of a run.

    - `status`: 'completed', 'stopped' (a signal) or 'failed'.
    - `signal`: The signal that stopped the run.
    """

    status: str
    steps: int
    seconds: float
    tokens: int
    last_checkpoint: Path | None
    best_checkpoint: Path | None
    message: str = ""
    signal: int | None = None

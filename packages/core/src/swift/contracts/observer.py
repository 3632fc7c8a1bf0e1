"""Records and facts that observers receive.

Importable without torch: tensors appear in annotations only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swift.contracts.backend import StepResult


@dataclass(frozen=True)
class StepRecord:
    """Record that observers receive after each optimizer step."""

    step: int
    total_steps: int
    epoch: float
    result: StepResult
    tokens: int
    """Real tokens of the global batch (padding left out)."""
    padded_tokens: int
    """Tokens that went through the model, padding included."""
    seconds: float
    """Wall-clock seconds of this step, waiting for data included."""
    data_seconds: float
    evaluation: Mapping[str, float] | None = None
    memory_gib: float = 0.0
    evaluation_before: Mapping[str, float] | None = None
    """Evaluation before this step, which is the first of its session (`train.eval_on_start`)."""


@dataclass(frozen=True)
class RunSummary:
    """Record that observers receive at the end of a run."""

    status: str
    """'completed', 'stopped' (a signal) or 'failed'."""
    steps: int
    seconds: float
    tokens: int
    last_checkpoint: Path | None
    best_checkpoint: Path | None
    message: str = ""
    signal: int | None = None
    """The signal that stopped the run."""

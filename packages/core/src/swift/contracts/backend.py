"""The contract of backends: what they declare that they can do, and what their steps return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from swift.contracts.optimizer import Reads
from swift.contracts.views import Need

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a backend. Asking for more raises `UnsupportedLayout` before any weights load.

    - `parallel`: Fields of the `parallel` section that may be set above 1 or switched on.
    - `tuners`: Of `swift.contracts.Trains`, what it can serve to a tuner.
    - `quantisers`: Values of `tuner.quantize` that it can train on.
    - `optimizers`: Which optimizers it can serve besides AdamW, which every backend has, by what they read.
    - `calls_before_update`: Every step calls `swift.toolkit.before_update` before it changes a weight: background saves
      copy until then.
    - `features`: Switches outside the plan, by config name: `train.compile`, `train.gradient_checkpointing`, ... With
      `backend.stages`, its options name the layers of each pipeline stage. Every backend trains on samples that lie end
      to end; with `data.padding_free`, they do so by default where the model scores and `swift.models.attention` keeps
      them apart without a mask.
    - `modalities`: What samples may hold: 'text', 'image', 'video', 'audio'. See `MicroBatch.media`.
    - `cuts_media`: Whether the tokens of samples that hold more than text may be shared between processes (cp,
      ulysses).
    - `roles`: How many models a run may hold at once, the policy among them: each is a state of its own in the same
      process.
    """

    parallel: frozenset[str] = frozenset()
    precisions: frozenset[str] = frozenset({"float32"})
    tuners: frozenset[str] = frozenset({"full"})
    quantisers: frozenset[str] = frozenset()
    optimizers: frozenset[Reads] = frozenset()
    provides: frozenset[Need] = frozenset({Need.TOKEN_LOGPS, Need.TOKEN_CORRECT, Need.REFERENCE_LOGPS})
    async_checkpoint: bool = False
    calls_before_update: bool = False
    features: frozenset[str] = frozenset()
    modalities: frozenset[str] = frozenset({"text"})
    cuts_media: bool = False
    roles: int = 1


class TrainState(Protocol):
    """Training state returned by `swift_shard`.

    Core touches only these members; the rest is the backend's own business.

    - `step`: Optimizer steps completed.
    """

    step: int


@dataclass
class StepResult:
    """Result of one step over the global batch, the same on every process, with loss and gradient norm unrounded.

    Both are before clipping.

    - `skipped`: True when the update was left out (an overflow under fp16).
    """

    loss: float
    grad_norm: float
    learning_rate: float
    metrics: dict[str, float] = field(default_factory=dict)
    skipped: bool = False


@dataclass
class ForwardResult:
    """Sums over the global batch, the same on every process; `segments` and `tokens` are of this process's slice.

    - `metrics`: Name → (sum, weight) over the global batch.
    - `segments`: One value or vector per segment of this process's slice, in order; see `LossSums.segments`.
    - `tokens`: Per segment of this process's slice, in order: name → float32, as long as the segment. Entry i belongs
      to token i, and entry 0, which nothing predicts, is 0: it can be handed in again as `Segment.token_values`.
    """

    loss: float
    weight: float
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    segments: torch.Tensor | None = None
    tokens: Sequence[Mapping[str, np.ndarray]] | None = None

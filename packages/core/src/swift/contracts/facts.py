"""Facts of a run: what was found and decided, as values of which observers make sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class QuantizedShare:
    """How much of a model QLoRA stores in 4 or 8 bits; `str()` of it is the sentence that people read.

    - `quantized`: Weights that are quantized.
    - `frozen`: All weights of the model, without adapters.
    - `left`: Weights of matrices that are not quantized, embeddings and heads aside.
    - `are_experts`: Whether most of them are experts, which transformers stacks into one parameter.
    - `dtype`: Of all weights that are not quantized.
    """

    quantized: int
    frozen: int
    left: int
    left_bytes: int
    are_experts: bool
    dtype: str

    @property
    def complete(self) -> bool:
        """Return whether the matrices are quantized, but for small ones such as routers and convolutions."""
        return 20 * self.left <= self.quantized + self.left

    def __str__(self) -> str:
        """Return '5 % of the frozen weights; the experts, 54.0 GiB, stay in bfloat16'."""
        percent = 100 * self.quantized / max(1, self.frozen)
        share = f"{percent:.0f} % of the frozen weights" if percent >= 1 else f"{percent:.2g} % of the frozen weights"
        if self.complete:
            return share
        size = self.left_bytes / 2**20
        amount = f"{size / 1024:.1f} GiB" if size >= 1024 else f"{size:.2g} MiB" if size < 10 else f"{size:.0f} MiB"
        return f"{share}; {'the experts' if self.are_experts else 'other matrices'}, {amount}, stay in {self.dtype}"


@dataclass(frozen=True)
class ModelFacts:
    """Facts of the model in training, for calculations: `run.facts.model`.

    - `precision`: Of the arithmetic: 'float32', 'bfloat16', 'float16', or what a backend calls its own ('bfloat16 fp8
      hybrid').
    - `parameters`: All weights, adapters included.
    - `trainable`: Those of them that are trained.
    - `quantized`: Of a run with `tuner.quantize`.
    """

    precision: str
    parameters: int
    trainable: int
    quantized: QuantizedShare | None = None


@dataclass(frozen=True)
class Decision:
    """A choice that was made for the run, and why.

    - `chosen`: 'bfloat16', 'sdpa'.
    """

    chosen: str
    reason: str = ""


@dataclass(frozen=True)
class RejectedSamples:
    """Samples that were left out of training for one reason.

    - `first`: Where the first of them stands, and what is wrong with it.
    """

    count: int
    first: str = ""


@dataclass(frozen=True)
class DataFacts:
    """The training set, as far as it has been read, and how much there is to evaluate on.

    - `rejected`: By reason.
    - `held_out`: Those of the samples that are not trained on, but evaluated on.
    - `validation`: Samples of a validation set of its own.
    """

    samples: int
    tokens: int
    rejected: Mapping[str, RejectedSamples] = field(default_factory=dict)
    held_out: int = 0
    validation: int = 0


class RunFacts(dict[str, Any]):
    """Facts of a run, which become known one by one.

    A backend notes a fact of its own as a text, which observers show as it stands: `run.facts["kernels"] = "..."`. One
    with the name of an attribute is shown in its place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.data: DataFacts | None = None
        self.precision: Decision | None = None
        """Of the arithmetic."""
        self.attention: Decision | None = None
        self.experts: Decision | None = None
        """How those of a mixture are computed."""
        self.model: ModelFacts | None = None
        """Set by `swift_wrap_model` (`build_view` of the toolkit does); without it no MFU is shown."""
        self.adapter: dict[str, Any] | None = None
        """PEFT configuration of the adapters in training, as JSON values; set by `swift_wrap_model`."""

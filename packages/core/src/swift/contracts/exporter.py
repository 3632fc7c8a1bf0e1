"""Requests to exporters, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

    from swift.config.sections import ExportSection
    from swift.contracts.model import ModelSource, WeightStream


@dataclass(frozen=True)
class ExportRequest:
    """Request to an exporter, apart from the weights.

    - `destination`: an empty folder to write into.
    - `source`: the model that training started from: its configuration, tokenizer and the shapes of its weights.
    - `adapter`: the PEFT configuration when adapters were trained, else None.
    - `options`: the `export` section, with `dtype` and `shard_size_gb`.
    - `own`: the exporter's own options, where it has an `options_model`.
    """

    destination: Path
    source: ModelSource
    adapter: Mapping[str, Any] | None
    options: ExportSection
    own: BaseModel | None = None


@dataclass(frozen=True)
class Reloaded:
    """An export that its exporter has read back from the files that it wrote.

    - `weights`: every weight of the merged model, decoded, under its Hugging Face name.
    - `rounding`: the largest error that the format explains, of a whole tensor relative to its norm: 0 for one that
      stores values as they are, about 0.004 for bfloat16, 0.01 for blocks of 8 bits.
    """

    weights: WeightStream
    rounding: float = 0.0


@dataclass(frozen=True)
class SchemeFacts:
    """A scheme of quantising as core knows it; an exporter offers it as `--quant NAME`.

    - `described`: In a few words, for a list of schemes: '4-bit weights, GPTQ's format'.
    - `calibrated`: Whether samples decide how weights are rounded. Otherwise they only measure what it costs, and may
      be missing.
    - `not_served_by`: Inference engine → why it does not serve such a model: it is not asked, and `--to` it is refused.
    """

    described: str
    calibrated: bool = True
    not_served_by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CalibrationRow:
    """A text as the model reads it, and how much predicting each token counts; `weights[0]` is always 0."""

    tokens: list[int]
    weights: list[float]


@dataclass(frozen=True)
class QuantizeRequest:
    """Request to quantise a model, with the samples to measure the cost on.

    - `source`: The whole model in full precision, on disk.
    - `scheme`: One of the exporter's `schemes`.
    - `held_out`: Not among those of `calibration`.
    - `options`: `swift.config.sections.ExportOptions`.
    """

    source: ModelSource
    destination: Path
    scheme: str
    calibration: Sequence[CalibrationRow]
    held_out: Sequence[CalibrationRow]
    prompts: Sequence[Sequence[int]]
    options: Any
    say: Callable[[str], None]


@dataclass(frozen=True)
class Quantized:
    """Result of quantising, as the exporter itself computes it.

    - `logps`: For each prompt, the log-probability of every token after the first, in fp32 from the quantised weights.
    - `tolerance`: Mean difference from `logps` that the arithmetic of an engine explains: it computes in bf16, and many
      quantised layers round their inputs as well.
    - `dtype`: Precision of what is not quantised, in which engines compute.
    - `report`: JSON values; what stands in `quantisation.json`.
    """

    logps: list[list[float]]
    tolerance: float
    dtype: str
    report: Mapping[str, Any]

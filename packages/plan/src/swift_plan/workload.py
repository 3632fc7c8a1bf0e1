"""The work of one optimizer step, and the part of a model that is trained, as a configuration says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swift.config.own_options import ALL_LINEAR, EXPERTS
from swift.planning import PlannedBackend
from swift_plan.quantized import QuantizedModel
from swift_plan.shape import Matrix2, ModelShape

_ROWS = 64
_PAIRS = frozenset({"dpo", "cpo", "simpo", "orpo", "rm", "embedding", "reranker"})
"""Objectives whose rows are two texts: pairs of responses, a query and a document, or two documents."""


@dataclass(frozen=True)
class Workload:
    """One optimizer step."""

    rows: int
    """Of a global batch."""
    length: int
    """Tokens of a text."""
    rows_assumed: bool
    """Whether nobody said how many rows."""
    compute_bytes: float
    adapted: bool
    """Whether adapters are trained beside frozen weights."""
    quantize: str = "none"
    """How the frozen weights are stored, those of them that are quantized: `tuner.quantize`."""
    on_cpu: bool = False
    segments: int = 1
    """Texts of a row: a response that is preferred and one that is not are two."""
    drops: bool = False
    """Whether adapters drop some of their inputs, of which each then keeps a copy and a mask."""

    experts: frozenset[str] = frozenset()
    """Names of the stacked experts that have adapters."""
    own_layers: bool = True
    """Whether the layers are the backend's own, and not those of transformers: matrices that have one input are one."""
    fp8: bool = False
    """Whether the products of layers are computed in FP8."""

    @property
    def tokens(self) -> int:
        """Return the tokens of an optimizer step."""
        return self.rows * self.row_tokens

    @property
    def row_tokens(self) -> int:
        """Return the tokens of a row, all of its texts together."""
        return self.segments * self.length

    @classmethod
    def of(cls, backend: PlannedBackend, *, processes: int, on_cpu: bool) -> Workload:
        """Return the work of a run; rows that nobody named are as many as every process can have one of."""
        config = backend.config
        compute = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}.get(config.model.dtype, 4.0 if on_cpu else 2.0)
        rows = config.train.global_batch
        return cls(
            rows=rows or max(_ROWS, processes),
            length=config.data.max_length + backend.rounds.completion_tokens,
            rows_assumed=rows is None,
            compute_bytes=compute,
            adapted=backend.trained_values(1, 1) is not None,
            quantize=config.tuner.quantize,
            on_cpu=on_cpu,
            segments=2 if config.objective.name in _PAIRS else 1,
            drops=bool(getattr(backend.tuner_options, "dropout", 0.0)),
            experts=adapted_experts(backend.tuner_options),
            own_layers=backend.own_layers,
            fp8=getattr(backend.backend_options, "fp8", "none") != "none",
        )


def adapted_experts(options: Any) -> frozenset[str]:
    """Return the names of the stacked experts that get adapters by a tuner's options."""
    if EXPERTS in getattr(options, "targets", ()):
        return frozenset({"gate_up_proj", "up_proj", "down_proj"})
    return frozenset(name.rpartition(".")[2] for name in getattr(options, "target_parameters", ()))


class TrainedCount:
    """How many values of a layer a run trains and how many it leaves, whole."""

    quantized: QuantizedModel | None = None

    def __init__(self, backend: PlannedBackend, shape: ModelShape, workload: Workload) -> None:
        self._shape, self._adapted, self._adapter_values = shape, workload.adapted, backend.trained_values
        if workload.quantize != "none":
            from swift_plan.quantized import quantized_model

            dtype = backend.config.model.dtype
            stored = dtype if dtype != "auto" else "float32" if workload.compute_bytes == 4 else "bfloat16"
            self.quantized = quantized_model(shape.config, backend.config.tuner, stored)
        targets = getattr(backend.tuner_options, "targets", (ALL_LINEAR,))
        self._targets = None if ALL_LINEAR in targets else targets
        self._experts = workload.experts
        self._layers = (self._count(with_experts=False), self._count(with_experts=True))

    def _adapters(self, matrices: list[Matrix2]) -> float:
        total = 0.0
        for matrix in matrices:
            if matrix.name != "router" and (self._targets is None or matrix.name in self._targets):
                total += matrix.copies * (self._adapter_values(matrix.rows, matrix.columns) or 0.0)
        return total

    def layer(self, *, with_experts: bool) -> tuple[float, float]:
        """Return (trained, frozen) of a layer without its routed experts."""
        return self._layers[with_experts]

    def _count(self, *, with_experts: bool) -> tuple[float, float]:
        values = float(self._shape.layer_values(with_experts=with_experts))
        if not self._adapted:
            return values, 0.0
        return self._adapters(list(self._shape.dense_matrices(with_experts=with_experts))), values

    def experts(self) -> tuple[float, float]:
        """Return (trained, frozen) of a layer's routed experts."""
        values = float(self._shape.expert_values)
        if not self._adapted:
            return values, 0.0
        stacks = [each for each in self._shape.stacked_experts() if each.name in self._experts]
        return sum(each.copies * (self._adapter_values(each.rows, each.columns) or 0.0) for each in stacks), values

    def end(self, values: float) -> tuple[float, float]:
        """Return (trained, frozen) of an embedding or a head."""
        return (0.0, values) if self._adapted else (values, 0.0)

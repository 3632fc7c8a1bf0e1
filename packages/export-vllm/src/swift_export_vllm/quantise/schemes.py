"""The quantisations by name: how many bits, how they are found, what they may cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from swift.contracts import SchemeFacts

GROUPS = (128, 64, 32)
"""Inputs that share a scale, in order of preference: fewer scales, or a finer grid."""

_NO_BITSANDBYTES = "vLLM 0.32 has no bitsandbytes among its quantisation methods; transformers loads it"


@dataclass(frozen=True)
class Scheme:
    """One way of storing linear layers."""

    name: str
    described: str
    method: Literal["feedback", "scaling", "nearest"]
    """feedback: each column's rounding error is made up for by the columns after it (GPTQ). scaling: inputs that
    matter are scaled up before rounding (AWQ). nearest: the weights alone decide."""
    grouped: bool
    """Whether groups of inputs have scales of their own; otherwise a row of the weight has one."""
    inputs: Literal["int8", "fp8"] | None
    """How engines round what goes into the layer, token by token."""
    tolerance: float
    """How much the loss per token may rise, in nats."""
    engine: float
    """Mean difference of log-probabilities that an engine's arithmetic explains: bf16, and inputs rounded there."""
    not_in_vllm: str | None = None
    """Why vLLM does not load it."""

    @property
    def facts(self) -> SchemeFacts:
        """Return the part of it that core knows."""
        unserved = {} if self.not_in_vllm is None else {"vllm": self.not_in_vllm}
        return SchemeFacts(self.described, calibrated=self.method != "nearest", not_served_by=unserved)


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("w4a16", "4-bit weights, compressed-tensors", "feedback", True, None, 0.1, 0.1),
        Scheme("w8a8", "8-bit weights and inputs, compressed-tensors", "feedback", False, "int8", 0.05, 0.1),
        Scheme("gptq", "4-bit weights, GPTQ's format", "feedback", True, None, 0.1, 0.1),
        Scheme("awq", "4-bit weights, AWQ's format", "scaling", True, None, 0.1, 0.1),
        Scheme("fp8", "FP8 weights and inputs, compressed-tensors", "nearest", False, "fp8", 0.05, 0.1),
        Scheme("bnb", "NF4 weights, bitsandbytes' format", "nearest", False, None, 0.1, 0.1, _NO_BITSANDBYTES),
    )
}


def group_size(inputs: list[int]) -> int:
    """Return the largest that divides all of these.

    The smallest where none does, and some layers are left as they are.
    """
    return next((size for size in GROUPS if all(each % size == 0 for each in inputs)), GROUPS[-1])

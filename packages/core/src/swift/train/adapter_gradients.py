"""Adapters that the first update leaves as they were: nothing in the model's computation reaches them.

No hook of backends is needed. PEFT's adapters begin with a matrix of zeros, which any gradient moves away from zero,
and `swift_iter_weights` streams them whole from any layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.errors import listed
from swift.models.peft_targets import short_names
from swift.plugins.tuner import tuner_of

if TYPE_CHECKING:
    from swift.contracts import StepRecord, WeightStream
    from swift.train.job import Job

_SHOWN = 6
"""Names that a message shows of adapters without a gradient."""
_TYPED = 16
"""Names at most that a message shows to be typed."""


class FirstUpdate:
    """Names, once in a session, the adapters that got no gradient in the first step that updates weights."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._looked = not tuner_of(job.run.config.tuner).adapter

    def look(self, record: StepRecord) -> None:
        """Look at the adapters after a step that has updated them. Collective: every process calls it alike."""
        result = record.result
        if self._looked or result.skipped or not (result.learning_rate > 0 and result.grad_norm > 0):
            return
        self._looked = True
        with_gradient, without = reached(self._job.hooks.swift_iter_weights(self._job.run, self._job.state))
        if without:
            experts = {name.split(".")[-2] for name in self._job.source.names() if ".experts." in name}
            self._job.run.say(_sentence(with_gradient, without, experts, record.step))


def reached(weights: WeightStream) -> tuple[list[str], list[str]]:
    """Return the modules whose adapters have left zero, and those whose adapters have not, of a stream of adapters."""
    from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING

    prefixes = tuple(PEFT_TYPE_TO_PREFIX_MAPPING.values())
    found: dict[str, bool] = {}
    for name, tensor in weights:
        module, _, part = name.removesuffix(".weight").removeprefix("base_model.model.").rpartition(".")
        if part.startswith(prefixes):
            found[module] = found.get(module, True) and bool(tensor.any())
    return [name for name, moved in found.items() if moved], [name for name, moved in found.items() if not moved]


def _sentence(with_gradient: list[str], without: list[str], experts: set[str], step: int) -> str:
    names = short_names(without, with_gradient)
    shown = listed(names, _SHOWN)
    others = short_names(with_gradient, without, experts)
    advice = (
        ""
        if len(others) > _TYPED or _has_experts(others)
        else f" To leave them out: --tuner.targets {' '.join(others)}"
    )
    return (
        f"{len(without)} of {len(with_gradient) + len(without)} adapters got no gradient in step {step}: {shown}. "
        f"Unless later steps reach them, they are saved and change nothing.{advice}"
    )


def _has_experts(names: list[str]) -> bool:
    """Return whether adapters on stacked experts are among these, which targets name in another way."""
    return any("experts" in name.split(".") for name in names)

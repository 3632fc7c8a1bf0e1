"""Forms to begin from: few values each, all of which can be changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class FormPreset:
    """A name, and the values that it sets."""

    name: str
    says: str
    command: str
    values: Mapping[str, str]


def _preset(name: str, says: str, command: str, **values: str) -> FormPreset:
    return FormPreset(name, says, command, {key.replace("__", "."): value for key, value in values.items()})


PRESETS = (
    _preset("LoRA", "Adapters on frozen weights: the usual way to fine-tune", "sft"),
    _preset("Full", "All weights", "sft", tuner__kind="full"),
    _preset("QLoRA", "Adapters on weights in 4 bits: least memory", "sft", tuner__quantize="bnb-nf4"),
    _preset("DPO", "From pairs of answers, of which one is preferred", "rlhf", objective__name="dpo"),
    _preset("GRPO", "From rewards of answers that the model gives", "rlhf", objective__name="grpo"),
)

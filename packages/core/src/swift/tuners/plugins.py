"""The tuners that core brings, registered through entry points like anyone's. Importable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from swift.config.incompatibilities import adapter_without_lora, misfit_of_start, started_twice, trained_in_low_bit
from swift.config.own_options import FROM_DATA, STARTED, FullOptions, LoraOptions
from swift.contracts.tuner import Trains, TunerContext

if TYPE_CHECKING:
    import torch

_LORA_B = (".lora_B.", ".lora_embedding_B.")


class Full:
    """All weights of the model, or some by pattern."""

    options_model = FullOptions
    adapter = False
    learning_rate = 1e-5

    def needs(self, options: FullOptions) -> frozenset[str]:
        """Return what every backend serves."""
        return frozenset({Trains.FULL})

    def attach(self, model: torch.nn.Module, options: FullOptions, context: TunerContext) -> torch.nn.Module:
        """Return the model itself, frozen where the patterns say so."""
        if context.quantize != "none":
            raise trained_in_low_bit(context.quantize)
        if context.adapter is not None:
            raise adapter_without_lora()
        from swift.models.tuners import freeze_by_pattern

        freeze_by_pattern(model, options)
        return model


class Lora:
    """Low-rank adapters, of PEFT's kind: LoRA, DoRA, rank-stabilised and LoRA+."""

    options_model = LoraOptions
    adapter = True
    learning_rate = 1e-4

    def needs(self, options: LoraOptions) -> frozenset[str]:
        """Return what is next to the matrices: magnitudes under DoRA, biases of the model, factors of weights."""
        extra = {
            Trains.DORA: options.dora,
            Trains.WEIGHTS: options.bias != "none",
            Trains.START: options.init in (*STARTED, *FROM_DATA),
        }
        return frozenset({Trains.LORA, *(need for need, present in extra.items() if present)})

    def attach(self, model: torch.nn.Module, options: LoraOptions, context: TunerContext) -> torch.nn.Module:
        """Return the model with adapters: those of a folder, or new ones."""
        from swift.models.peft_modules import resume_adapter
        from swift.models.tuners import attach_lora

        if (misfit := misfit_of_start(options.init, context.quantize)) is not None:
            raise misfit
        if context.adapter is not None and options.init in (*STARTED, *FROM_DATA):
            raise started_twice(options.init)
        if context.adapter is not None:
            dropout = options.dropout if "dropout" in options.model_fields_set else None
            return resume_adapter(model, context.adapter, context.say, dropout=dropout)
        return attach_lora(model, options, context)

    def initial(self, name: str, shape: Sequence[int], options: LoraOptions, seed: int) -> torch.Tensor | None:
        """Return where A and B begin, in PEFT's distributions; magnitudes and whole modules begin as the weights."""
        from swift.models.tuners import initial_lora

        return initial_lora(name, shape, options, seed)

    def lr_scale(self, name: str, options: LoraOptions) -> float:
        """Return LoRA+'s factor for the matrices B."""
        faster = options.lora_plus_ratio is not None and any(marker in name for marker in _LORA_B)
        return options.lora_plus_ratio if faster and options.lora_plus_ratio is not None else 1.0

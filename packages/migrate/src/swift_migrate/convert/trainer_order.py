"""Parameters that transformers' Trainer trains, in the order of its optimizer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from swift.contracts import ModelSource
from swift.models import as_model_error, peft_config
from swift.toolkit import ADAPTER, Piece, canonical_parameters

Groups = list[list[str]]
"""Names in memory of the parameters in each group of the optimizer."""


def skeleton_of(source: ModelSource, adapter: Mapping[str, Any] | None) -> torch.nn.Module:
    """Return the model, or the PEFT model with the adapter, on the meta device."""
    model: Any = source.build(dtype=torch.float32, weights=False)
    if adapter is None:
        skeleton: torch.nn.Module = model
        return skeleton
    from peft import get_peft_model

    config = peft_config({**adapter, "inference_mode": False}, model, "the adapter's configuration")
    fits = as_model_error(
        "The adapter's configuration does not fit the model", hint="Type --model with the adapter's base model."
    )
    with torch.random.fork_rng(devices=[]), torch.device("meta"), fits:
        tuned: torch.nn.Module = get_peft_model(model, config, adapter_name=ADAPTER)
    return tuned


def pieces_by_parameter(model: torch.nn.Module) -> dict[str, list[Piece]]:
    """Return name in memory → the tensors on disk that make up the parameter."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: pieces for pieces, parameter in canonical_parameters(model)}


def trainer_groups(model: torch.nn.Module) -> Groups:
    """Group parameters as the installed Trainer does: with weight decay, and without."""
    from transformers import Trainer

    unbound: Any = Trainer.get_decay_parameter_names  # it does not use the Trainer instance
    return _split(model, set(unbound(None, model)))


def possible_groups(model: torch.nn.Module) -> Iterator[Groups]:
    """Yield the installed Trainer's groups first, then those of older ones, then one group of everything."""
    from transformers.trainer_pt_utils import get_parameter_names

    yield trainer_groups(model)
    yield _split(model, {name for name in get_parameter_names(model, [torch.nn.LayerNorm]) if "bias" not in name})
    yield [_trained(model)]


def _trained(model: torch.nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _split(model: torch.nn.Module, decayed: Collection[str]) -> Groups:
    trained = _trained(model)
    return [[name for name in trained if name in decayed], [name for name in trained if name not in decayed]]

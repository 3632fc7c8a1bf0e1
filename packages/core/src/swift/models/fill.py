"""Reading weights into a model that is laid out already: each process keeps its part. For use by backends."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch

from swift.contracts import ModelSource, Run
from swift.models.adapter_file import ADAPTER_WEIGHTS
from swift.models.heads import VALUE_HEAD
from swift.models.names import ADAPTER, adapter_names, base_model, name_map, whole_shape
from swift.models.plain_lora import is_frozen_factor
from swift.models.quantize import is_quantised
from swift.plugins.tuner import tuner_of

Keep = Callable[[torch.Tensor, torch.Tensor], None]
"""Copies this process's part of a whole tensor into a tensor of the model."""


@torch.no_grad()
def fill(run: Run, model: torch.nn.Module, source: ModelSource, keep: Keep) -> None:
    """Read weights one after the other, and keep this process's part of each. No process ever holds all of them.

    Quantised weights are left as they are: they were read when the model was built.
    """
    names = name_map(model)
    copies = _copies(model)
    for name in names.parameters():
        if is_quantised(copies[name][0]):
            continue
        whole = torch.empty(whole_shape(copies[name][0]), dtype=copies[name][0].dtype)
        for piece in names.pieces(name):
            piece.view_of(whole).copy_(source.read(piece.name))
        for parameter in copies[name]:
            keep(parameter, whole)
        _start_magnitude(model, name, whole, keep)
    if hasattr(model, "peft_config"):
        _fill_adapters(run, model, keep)


def _copies(model: torch.nn.Module) -> dict[str, list[torch.Tensor]]:
    """Name in the transformers model → the tensors that begin with its value: PEFT keeps copies of some modules."""
    base = base_model(model)
    found: dict[str, list[torch.Tensor]] = {}
    for name, tensor in chain(
        base.named_parameters(remove_duplicate=False), base.named_buffers(remove_duplicate=False)
    ):
        for wrapper in (".base_layer", ".original_module", f".modules_to_save.{ADAPTER}"):
            name = name.replace(wrapper, "")
        found.setdefault(name, []).append(tensor)
    return found


def _fill_adapters(run: Run, model: torch.nn.Module, keep: Keep) -> None:
    from safetensors.torch import load_file

    tuner = run.config.tuner
    selected = tuner_of(tuner)
    given = {} if tuner.adapter is None else load_file(tuner.adapter / ADAPTER_WEIGHTS)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for memory, disk in adapter_names(model).items():
        if memory not in parameters or disk == VALUE_HEAD:  # which is filled as the model's weights are
            continue
        parameter = parameters[memory]
        if disk in given or disk in run.adapter_start:
            keep(parameter, given[disk] if disk in given else run.adapter_start[disk])
        elif is_frozen_factor(disk):  # a resumed run reads it from its checkpoint
            keep(parameter, torch.zeros(whole_shape(parameter)))
        else:
            first = selected.initial(disk, torch.Size(whole_shape(parameter)), run.config.train.seed)
            if first is not None:
                keep(parameter, first)


def _start_magnitude(model: torch.nn.Module, name: str, whole: torch.Tensor, keep: Keep) -> None:
    """DoRA's magnitudes begin as the norms of the rows of the weight that they scale; B is zero then."""
    module_name = name.removesuffix(".weight")
    try:
        module = base_model(model).get_submodule(module_name)
    except AttributeError:
        return
    vectors = getattr(module, "lora_magnitude_vector", None)
    if vectors is not None and ADAPTER in vectors:
        keep(vectors[ADAPTER].weight, torch.linalg.norm(whole.float(), dim=1))

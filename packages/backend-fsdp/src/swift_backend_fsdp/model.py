"""The model before it has weights, and how each process reads the parts that are its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from swift.errors import ModelError
from swift.toolkit import (
    ADAPTER,
    ViewModule,
    adapter_names,
    base_model,
    build_view,
    decoder_blocks,
    initial_adapter,
    name_map,
)
from swift_backend_fsdp.local import local_slice
from swift_backend_fsdp.plan import check_heads
from swift_backend_fsdp.sequence import SequenceView, sequence_attention
from swift_backend_fsdp.topology import meshes

if TYPE_CHECKING:
    from swift.contracts import ModelSource, Run


@dataclass
class Hollow:
    """A view of a model whose parameters are on the meta device (unless they are quantised)."""

    view: ViewModule
    source: ModelSource
    blocks: list[nn.Module]
    filled: bool
    """Whether it has its weights: quantised ones are read before they are sharded."""


def build(run: Run, source: ModelSource) -> Hollow:
    """Everything about the model but its weights."""
    check_heads(run, source.config)
    config = run.config
    attention = sequence_attention(run, source.config) if meshes().sizes.sequence > 1 else None
    quantised = config.tuner.quantize != "none"
    view = build_view(
        run,
        source,
        weights=quantised,
        attention=attention,
        view_class=SequenceView if attention is not None else ViewModule,
    )
    blocks = decoder_blocks(view.model)
    if not blocks:
        raise ModelError(
            f"{type(base_model(view.model)).__name__} has no list of decoder blocks that could be sharded one by one.",
            hint="Type --backend torch",
        )
    if config.train.gradient_checkpointing:
        every = run.backend_options.checkpoint_every  # type: ignore[attr-defined]  # validated by config_model
        for index, block in enumerate(blocks):
            block.gradient_checkpointing = index % every == 0  # transformers' own switch
    return Hollow(view, source, blocks, filled=quantised)


@torch.no_grad()
def fill(run: Run, model: nn.Module, source: ModelSource) -> None:
    """Read weights one after the other, and keep this process's part of each. No process ever holds all of them."""
    names = name_map(model)
    copies = _copies(model)
    for name in names.parameters():
        shape = _whole_shape(copies[name])
        whole = torch.empty(shape, dtype=copies[name][0].dtype)
        for piece in names.pieces(name):
            piece.view_of(whole).copy_(source.read(piece.name))
        for parameter in copies[name]:
            keep(parameter, whole)
        _start_magnitude(model, name, whole)
    if hasattr(model, "peft_config"):
        _fill_adapters(run, model)


def keep(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy this process's part of `whole` into its tensor."""
    local, region = local_slice(tensor)
    local.copy_(whole[region])


def _copies(model: nn.Module) -> dict[str, list[torch.Tensor]]:
    """Name in the transformers model → the tensors that begin with its value: PEFT keeps copies of some modules."""
    base = base_model(model)
    found: dict[str, list[torch.Tensor]] = {}
    both = (base.named_parameters(remove_duplicate=False), base.named_buffers(remove_duplicate=False))
    for tensors in both:
        for name, tensor in tensors:
            for wrapper in (".base_layer", ".original_module", f".modules_to_save.{ADAPTER}"):
                name = name.replace(wrapper, "")
            found.setdefault(name, []).append(tensor)
    return found


def _whole_shape(tensors: list[torch.Tensor]) -> torch.Size:
    return tensors[0].shape  # a DTensor answers with its global one


def _adapters(model: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Name in memory, name on disk, tensor."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for memory, disk in adapter_names(model).items():
        if memory in parameters:
            yield memory, disk, parameters[memory]


def _fill_adapters(run: Run, model: nn.Module) -> None:
    tuner = run.config.tuner
    given = _given(tuner.adapter) if tuner.adapter is not None else {}
    for memory, disk, parameter in _adapters(model):
        if disk in given:
            keep(parameter, given[disk])
        elif ".lora_A." in memory or ".lora_B." in memory or ".lora_embedding_" in memory:
            keep(parameter, initial_adapter(disk, parameter.shape, tuner, seed=run.config.train.seed))


def _given(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = load_file(folder / "adapter_model.safetensors")
    return tensors


def _start_magnitude(model: nn.Module, name: str, whole: torch.Tensor) -> None:
    """DoRA's magnitudes begin as the norms of the rows of the weight that they scale; B is zero then."""
    module_name = name.removesuffix(".weight")
    try:
        module: Any = base_model(model).get_submodule(module_name)
    except AttributeError:
        return
    vectors = getattr(module, "lora_magnitude_vector", None)
    if vectors is not None and ADAPTER in vectors:
        keep(vectors[ADAPTER].weight, torch.linalg.norm(whole.float(), dim=1))

"""LoRA on the routed experts of Megatron's layers, under the names and in the layout of PEFT's `target_parameters`.

PEFT has one A and one B for all experts of a layer: the experts' A one after the other, and the columns of their B in
turn. A process has those of its own experts. Tokens come to a grouped layer sorted by expert, and nothing is exchanged
between A and B: the dispatcher has brought every token to its expert.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from swift.errors import UnsupportedLayout
from swift.toolkit import ADAPTER, Piece, adapter_names, name_map
from swift_backend_megatron.tensor_map import MappedTensor, MegatronModel, Tile

PREFIX = "base_model.model."
"""Before the names of modules in PEFT's wrapper."""


@dataclass(frozen=True)
class ExpertSpec:
    """Adapters of a parameter that stacks a matrix of each expert: [experts, rows, columns]."""

    parameter: str
    """Its name in transformers."""
    shape: tuple[int, int, int]
    a: str
    """Name on disk: [experts · rank, columns]."""
    b: str
    """Name on disk: [rows, rank · experts]."""
    rank: int
    scaling: float


class ExpertAdapter(nn.Module):
    """A and B of the experts that this process has of a layer."""

    def __init__(self, spec: ExpertSpec, experts: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.spec = spec
        _, rows, columns = spec.shape
        self.a = nn.Parameter(torch.zeros(experts * spec.rank, columns, dtype=dtype, device=device))
        # For each of the ranks the columns of all experts: what lies together on disk lies together here.
        self.b = nn.Parameter(torch.zeros(spec.rank, rows, experts, dtype=dtype, device=device))

    def forward(self, hidden: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        """Return what is added to the layer's output; the first `tokens[0]` rows belong to the first expert."""
        down, up = self.a.view(-1, self.spec.rank, self.a.shape[1]), self.b.unbind(-1)
        parts = torch.split(hidden.to(self.a.dtype), list(tokens))
        added = [part @ a.T @ b for part, a, b in zip(parts, down, up, strict=True)]
        return torch.cat(added) * self.spec.scaling


class AdaptedExperts(nn.Module):
    """A grouped layer of Megatron's, and the adapters of its experts."""

    def __init__(self, layer: Any, adapter: ExpertAdapter) -> None:
        super().__init__()
        self.base_layer = layer
        self.adapter = adapter
        self.off = False
        """True while the model is viewed without its adapters."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_layer"), name)

    def forward(self, hidden: torch.Tensor, tokens: Any) -> Any:
        """Return the layer's output and biases."""
        output, biases = self.base_layer(hidden, tokens)
        if self.off:
            return output, biases
        return output + self.adapter(hidden, tokens).to(output.dtype), biases


def adapt_experts(built: MegatronModel, meta_copy: nn.Module, device: torch.device) -> list[str]:
    """Attach adapters to the experts that have some on `meta_copy`, PEFT's model, and map their tensors.

    Return the names on disk of all of them.
    """
    layer_of = {
        id(parameter): (chunk, name.rpartition(".")[0])
        for chunk in built.chunks
        for name, parameter in chunk.named_parameters(remove_duplicate=False)
    }
    names = name_map(meta_copy)
    specs = list(_specs(meta_copy))
    for spec in specs:
        if built.config.expert_tensor_parallel_size > 1:
            raise UnsupportedLayout(
                "Adapters on experts are not offered with expert tensor parallelism "
                f"(etp {built.config.expert_tensor_parallel_size}).",
                hint="Type --etp 1; --ep distributes the experts.",
            )
        count, rows, columns = spec.shape
        built.tensor_map[spec.a] = MappedTensor((count * spec.rank, columns))
        built.tensor_map[spec.b] = MappedTensor((rows, spec.rank * count))
        held = _held(spec, names.pieces(spec.parameter), built)
        if not held:
            continue
        chunk, path = layer_of[id(next(iter(held.values()))[0].tensor)]
        layer = chunk.get_submodule(path)
        _check_layer(spec, held, layer)
        adapter = ExpertAdapter(spec, len(held), built.dtype, device)
        for parameter in adapter.parameters():
            mark_expert(parameter, built.config, dimension=0)
        _map(spec, adapter, min(held), built)
        parent, _, attribute = path.rpartition(".")
        setattr(chunk.get_submodule(parent), attribute, AdaptedExperts(layer, adapter))
    return [name for spec in specs for name in (spec.a, spec.b)]


def mark_expert(parameter: torch.Tensor, config: Any, *, dimension: int) -> None:
    """Mark who reduces the gradient of a parameter of experts, and that each process has another shard of it."""
    expert_tensor = config.expert_tensor_parallel_size or config.tensor_model_parallel_size
    own_group = config.expert_model_parallel_size > 1 or expert_tensor != config.tensor_model_parallel_size
    marks = {
        "allreduce": not own_group,
        "tensor_model_parallel": True,
        "partition_dim": dimension,
        "partition_stride": 1,
    }
    for mark, value in marks.items():
        setattr(parameter, mark, value)


def _specs(meta_copy: nn.Module) -> Iterator[ExpertSpec]:
    from peft.tuners.lora.layer import ParamWrapper

    on_disk = adapter_names(meta_copy)
    for path, module in meta_copy.named_modules():
        if not isinstance(module, ParamWrapper):
            continue
        owner = path
        while owner.endswith(".base_layer"):
            owner = owner.removesuffix(".base_layer")
        parameter = f"{owner.removeprefix(PREFIX)}.{module.parameter_name}"
        shape = tuple(module.get_param().shape)
        if len(shape) != 3 or getattr(module.get_base_layer(), "is_transposed", False):
            reason = "a router" if len(shape) != 3 else "experts whose rows are inputs"
            raise UnsupportedLayout(
                f"An adapter on {parameter} is not offered with Megatron: it is a parameter of {reason}.",
                hint="Leave it out of --target_modules, or type --backend fsdp.",
            )
        yield ExpertSpec(
            parameter=parameter,
            shape=(shape[0], shape[1], shape[2]),
            a=on_disk[f"{path}.lora_A.{ADAPTER}.weight"],
            b=on_disk[f"{path}.lora_B.{ADAPTER}.weight"],
            rank=module.r[ADAPTER],
            scaling=float(module.scaling[ADAPTER]),
        )


def _held(spec: ExpertSpec, pieces: Sequence[Piece], built: MegatronModel) -> dict[int, list[Tile]]:
    """Return the tiles of each expert that this process has, in the order of the rows of the stacked matrix."""
    _, rows, columns = spec.shape
    held: dict[int, list[Tile]] = defaultdict(list)
    for piece in pieces:
        if len(piece.shape) != 2 or piece.shape[1] != columns:
            raise _other_order(spec)
        expert = piece.start // (rows * columns)
        for tile in built.tensor_map[piece.name].tiles:
            row = piece.start // columns - expert * rows + tile.offset[0]
            if tile.start != row * columns or tile.sizes[1] != columns:
                raise _other_order(spec)
            held[expert].append(tile)
    return held


def _check_layer(spec: ExpertSpec, held: dict[int, list[Tile]], layer: Any) -> None:
    """Refuse a layer that does not compute with these experts, whole and one after the other."""
    experts = sorted(held)
    whole = all(sum(tile.sizes[0] for tile in held[expert]) == spec.shape[1] for expert in experts)
    own = experts == list(range(experts[0], experts[0] + getattr(layer, "num_gemms", 0)))
    if not (whole and own):
        raise _other_order(spec)
    for index, expert in enumerate(experts):
        if any(tile.tensor is not getattr(layer, f"weight{index}") for tile in held[expert]):
            raise _other_order(spec)


def _other_order(spec: ExpertSpec) -> UnsupportedLayout:
    return UnsupportedLayout(
        f"Megatron stores {spec.parameter} in another order than transformers, which adapters on it do not support.",
        hint="Leave the experts out of --target_modules, or type --backend fsdp.",
    )


def _map(spec: ExpertSpec, adapter: ExpertAdapter, first: int, built: MegatronModel) -> None:
    """Map the tensors of a process whose experts begin with the `first`."""
    count, rows, columns = spec.shape
    held = adapter.b.shape[-1]
    built.tensor_map[spec.a].tiles.append(Tile((first * spec.rank, 0), (held * spec.rank, columns), adapter.a, 0))
    built.tensor_map[spec.b].tiles.extend(
        Tile((0, rank * count + first), (rows, held), adapter.b, rank * rows * held) for rank in range(spec.rank)
    )

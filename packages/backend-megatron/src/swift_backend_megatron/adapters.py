"""LoRA next to Megatron's layers, one adapter per Hugging Face module as PEFT has it.

Megatron computes query, key and value (gate and up) with one fused matrix. An adapter on the fused matrix would be
another parametrisation than PEFT's: it could neither start nor resume from the same numbers. Here each Hugging Face
module keeps its A and B; the tensor map has the rows of the fused output each B belongs. Only what has
`rank` columns is ever sent between tensor parallel processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from swift.contracts import Run
from swift.errors import UnsupportedLayout
from swift.toolkit import ADAPTER, HEAD, START, VALUE_HEAD, adapter_names, base_model, name_map
from swift_backend_megatron.expert_adapters import PREFIX, AdaptedExperts, adapt_experts
from swift_backend_megatron.tensor_map import MappedTensor, MegatronModel, Tile


@dataclass(frozen=True)
class AdapterSpec:
    """An adapter as PEFT describes it."""

    weight: str
    """Name on disk of the weight that it is added to."""
    a: str
    b: str
    rank: int
    scaling: float
    dropout: float
    start: tuple[str, str] | None = None
    """Names of the frozen factors that are subtracted, where the adapter begins as a part of the weight."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names on disk of all its matrices, frozen ones first."""
        return (*(self.start or ()), self.a, self.b)


@dataclass(frozen=True)
class AdapterOutputs:
    """The outputs of a layer to which those of its adapters, end to end, are added."""

    order: torch.Tensor | None = None
    """Index of each of the layer's outputs among the adapters'; None where both have the same order."""
    targets: torch.Tensor | None = None
    """The layer's outputs that have adapters, in the adapters' order, where not all of them have."""

    def add(self, output: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        if self.targets is not None:
            return output.index_add(-1, self.targets, added)
        return output + (added if self.order is None else added.index_select(-1, self.order))


class LoraAdapter(nn.Module):
    """A and B of one Hugging Face module, or what this process has of them."""

    def __init__(self, spec: AdapterSpec, inputs: int, outputs: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.spec = spec
        self.a = nn.Parameter(torch.zeros(spec.rank, inputs, dtype=dtype, device=device))
        self.b = nn.Parameter(torch.zeros(outputs, spec.rank, dtype=dtype, device=device))
        if spec.start is not None:
            self.start_a = nn.Parameter(torch.zeros_like(self.a), requires_grad=False)
            self.start_b = nn.Parameter(torch.zeros_like(self.b), requires_grad=False)

    def forward(self, hidden: torch.Tensor, exchange: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return what is added to the layer's output; `exchange` sends the few columns between A and B."""
        dropped = nn.functional.dropout(hidden, self.spec.dropout, self.training)
        squeezed = nn.functional.linear(dropped.to(self.a.dtype), self.a)
        if self.spec.start is None:
            return nn.functional.linear(exchange(squeezed), self.b) * self.spec.scaling
        beginning = nn.functional.linear(hidden.to(self.a.dtype), self.start_a)
        both = torch.tensor_split(exchange(torch.cat([squeezed, beginning], dim=-1)), 2, dim=-1)
        added = nn.functional.linear(both[0], self.b) - nn.functional.linear(both[1], self.start_b)
        return added * self.spec.scaling


class AdaptedLinear(nn.Module):
    """A linear layer of Megatron's or of an encoder, with the adapters of the Hugging Face modules that it computes."""

    def __init__(self, layer: Any, adapters: list[LoraAdapter], outputs: AdapterOutputs, config: Any) -> None:
        super().__init__()
        self.base_layer = layer
        self.adapters = nn.ModuleList(adapters)
        self.off = False
        """True while the model is viewed without its adapters."""
        self._outputs = outputs
        self._mode = parallel_mode(layer)
        self._sharded = config.tensor_model_parallel_size > 1 and self._mode is not None
        self._sequence = config.sequence_parallel
        self._normed = hasattr(layer, "layer_norm_weight")
        self._plain = isinstance(layer, nn.Linear)
        for adapter in adapters:
            self._mark(adapter)

    def _mark(self, adapter: LoraAdapter) -> None:
        """Mark each matrix as sharded, or as the same everywhere with a gradient that is partial."""
        if not self._sharded:
            matrix: Any
            for matrix in (adapter.a, adapter.b):
                matrix.sequence_parallel = getattr(self.base_layer.weight, "sequence_parallel", False)
            return
        sharded: Any
        whole: Any
        sharded, whole, dimension = (adapter.b, adapter.a, 0) if self._mode == "column" else (adapter.a, adapter.b, 1)
        sharded.tensor_model_parallel, sharded.partition_dim, sharded.partition_stride = True, dimension, 1
        whole.sequence_parallel = self._sequence

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_layer"), name)

    def forward(self, hidden: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        """Return the layer's output and bias; of a layer of torch, which encoders have, the output alone."""
        if self.off:
            return self.base_layer(hidden, *arguments, **named)
        if self._normed:
            self.base_layer.return_layernorm_output = True
            try:
                (output, hidden), bias = self.base_layer(hidden, *arguments, **named)
            finally:
                self.base_layer.return_layernorm_output = False
        elif self._plain:
            output, bias = self.base_layer(hidden), None
        else:
            output, bias = self.base_layer(hidden, *arguments, **named)
        parts = [adapter(hidden, self._exchange) for adapter in self.adapters]
        added = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        summed = self._outputs.add(output, added.to(output.dtype))
        return summed if self._plain else (summed, bias)

    def _exchange(self, squeezed: torch.Tensor) -> torch.Tensor:
        """Exchange `rank` columns between A and B as the layer itself exchanges its input or output."""
        if not self._sharded:
            return squeezed
        from megatron.core.tensor_parallel import mappings

        exchange: Callable[[torch.Tensor], torch.Tensor]
        if self._mode == "column" and self._sequence:
            exchange = partial(mappings.gather_from_sequence_parallel_region, tensor_parallel_output_grad=True)
        elif self._mode == "column":
            exchange = mappings.copy_to_tensor_model_parallel_region
        elif self._sequence:
            exchange = mappings.reduce_scatter_to_sequence_parallel_region
        else:
            exchange = mappings.reduce_from_tensor_model_parallel_region
        return exchange(squeezed)


def parallel_mode(layer: Any) -> str | None:
    """Return 'column', 'row', or None where every process has the whole matrix."""
    mode = getattr(layer, "parallel_mode", None)
    return mode if mode in ("column", "row") else None


def adapt(run: Run, built: MegatronModel, meta_copy: nn.Module) -> frozenset[str]:
    """Attach an adapter wherever PEFT has one on `meta_copy`, the transformers model, and map their tensors.

    Return the names on disk of all of them.
    """
    specs = {spec.weight: spec for spec in _specs(meta_copy)}.values()
    layer_of = {
        id(parameter): (index, name.rpartition(".")[0])
        for index, chunk in enumerate(built.chunks)
        for name, parameter in chunk.named_parameters(remove_duplicate=False)
    }
    layers: dict[tuple[int, str], list[tuple[AdapterSpec, list[Tile]]]] = {}
    for spec in specs:
        weight = built.tensor_map[spec.weight]
        for tensor in {id(tile.tensor): tile.tensor for tile in weight.tiles}.values():
            tiles = [tile for tile in weight.tiles if tile.tensor is tensor]
            layers.setdefault(layer_of[id(tensor)], []).append((spec, tiles))
        outputs, inputs = weight.shape
        built.tensor_map |= {name: MappedTensor((spec.rank, inputs)) for name in spec.tensors[::2]}
        built.tensor_map |= {name: MappedTensor((outputs, spec.rank)) for name in spec.tensors[1::2]}
    device = torch.device(run.topology.device)
    for (index, path), members in layers.items():
        layer: Any = built.chunks[index].get_submodule(path)
        _check_linear(path, layer, members[0][0])
        own = [_adapter(spec, tiles, built, device) for spec, tiles in members]
        added = _outputs([tiles for _, tiles in members], layer.weight.shape[0], device)
        parent, _, attribute = path.rpartition(".")
        adapted = AdaptedLinear(layer, own, added, built.config)
        setattr(built.chunks[index].get_submodule(parent), attribute, adapted)
    experts = adapt_experts(built, meta_copy, device)
    return frozenset((*(name for spec in specs for name in spec.tensors), *experts))


def train_head(built: MegatronModel, meta_copy: nn.Module) -> frozenset[str]:
    """Train the head whole where PEFT does on `meta_copy`, and map it by the name that PEFT saves it under.

    Return that name, or nothing. A head for values next to the unembedding keeps its own.
    """
    for memory, name in adapter_names(meta_copy).items():
        if name == VALUE_HEAD:
            built.saved_with_adapters[name] = name
            for tile in built.tensor_map[name].tiles:
                tile.tensor.requires_grad_(True)
            continue
        weight = memory.removeprefix(PREFIX).replace(f".modules_to_save.{ADAPTER}", "")
        if weight == memory.removeprefix(PREFIX):
            continue
        if weight != HEAD:
            raise UnsupportedLayout(
                f"The adapter has {weight} as a whole (modules_to_save), which Megatron has sharded or distributed.",
                hint="Type --backend fsdp",
            )
        head = built.tensor_map[name] = built.tensor_map.pop(weight)
        built.saved_with_adapters[name] = weight
        for tile in head.tiles:
            tile.tensor.requires_grad_(True)
    return frozenset(built.saved_with_adapters)


def _specs(meta_copy: nn.Module) -> list[AdapterSpec]:
    from peft.tuners.lora import LoraLayer
    from peft.tuners.lora.layer import ParamWrapper
    from peft.tuners.tuners_utils import BaseTunerLayer

    on_disk = adapter_names(meta_copy)
    names = name_map(meta_copy)
    found = []
    for path, module in meta_copy.named_modules():
        if not isinstance(module, BaseTunerLayer) or isinstance(module, ParamWrapper):
            continue
        plain = isinstance(module, LoraLayer) and isinstance(module.get_base_layer(), nn.Linear)
        weight = f"{path.removeprefix(PREFIX)}.weight"
        pieces = names.pieces(weight) if plain and weight in names.parameters() else ()
        if len(pieces) != 1 or pieces[0].numel != module.get_base_layer().weight.numel():
            raise UnsupportedLayout(
                f"An adapter on {path.removeprefix(PREFIX)} is not offered with Megatron: adapters go on linear "
                "layers that are one tensor on disk.",
                hint="Name the modules: --tuner.targets q_proj k_proj v_proj o_proj, or type --backend fsdp.",
            )
        dropout = module.lora_dropout[ADAPTER]
        start_a, start_b = (on_disk.get(f"{path}.lora_{part}.{START}.weight") for part in "AB")
        found.append(
            AdapterSpec(
                weight=pieces[0].name,
                a=on_disk[f"{path}.lora_A.{ADAPTER}.weight"],
                b=on_disk[f"{path}.lora_B.{ADAPTER}.weight"],
                rank=module.r[ADAPTER],
                scaling=float(module.scaling[ADAPTER]),
                dropout=float(getattr(dropout, "p", 0.0)),
                start=None if start_a is None or start_b is None else (start_a, start_b),
            )
        )
    assert base_model(meta_copy) is not meta_copy
    return found


def _check_linear(path: str, layer: Any, spec: AdapterSpec) -> None:
    experts = ".experts." in f".{path}."
    if experts or not hasattr(layer, "in_features") or getattr(layer, "weight", None) is None:
        raise UnsupportedLayout(
            f"An adapter on {spec.weight.removesuffix('.weight')} is not offered with Megatron, which computes it in "
            f"{type(layer).__name__}.",
            hint="Name the modules: --tuner.targets q_proj k_proj v_proj o_proj, or type --backend fsdp.",
        )


def _adapter(spec: AdapterSpec, tiles: list[Tile], built: MegatronModel, device: torch.device) -> LoraAdapter:
    """Return the module, and map its tensors: B follows the rows of the weight, A its columns."""
    rows = sum(tile.sizes[0] for tile in tiles)
    columns = tiles[0].sizes[1]
    first = tiles[0].offset[1]
    if any(tile.offset[1] != first or tile.sizes[1] != columns for tile in tiles):
        raise UnsupportedLayout(
            f"{spec.weight} is sharded in a way that no adapter fits to.", hint="Type --backend fsdp"
        )
    adapter = LoraAdapter(spec, columns, rows, built.dtype, device)
    pairs = [(spec.a, adapter.a, spec.b, adapter.b)]
    if spec.start is not None:
        pairs.append((spec.start[0], adapter.start_a, spec.start[1], adapter.start_b))
    for name_a, a, name_b, b in pairs:
        built.tensor_map[name_a].tiles.append(Tile((0, first), (spec.rank, columns), a, 0))
        start = 0
        for tile in tiles:
            height = tile.sizes[0]
            corner = (tile.offset[0], 0)
            built.tensor_map[name_b].tiles.append(Tile(corner, (height, spec.rank), b, start * spec.rank))
            start += height
    return adapter


def _outputs(members: list[list[Tile]], outputs: int, device: torch.device) -> AdapterOutputs:
    targets = [tile.start // tile.sizes[1] + row for tiles in members for tile in tiles for row in range(tile.sizes[0])]
    if len(targets) < outputs:
        return AdapterOutputs(targets=torch.tensor(targets, device=device))
    if targets == list(range(outputs)):
        return AdapterOutputs()
    return AdapterOutputs(order=torch.tensor(targets, device=device).argsort())


@contextmanager
def adapters_off(chunks: list[Any]) -> Iterator[None]:
    """View the model without its adapters."""
    adapted = (AdaptedLinear, AdaptedExperts)
    layers = [module for chunk in chunks for module in chunk.modules() if isinstance(module, adapted)]
    for layer in layers:
        layer.off = True
    try:
        yield
    finally:
        for layer in layers:
            layer.off = False

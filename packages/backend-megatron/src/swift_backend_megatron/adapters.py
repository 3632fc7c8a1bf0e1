"""LoRA beside Megatron's layers, one adapter per Hugging Face module as PEFT has it.

Megatron computes query, key and value (gate and up) with one fused matrix. An adapter on the fused matrix would be
another parametrisation than PEFT's: it could neither begin nor go on from the same numbers. Here each Hugging Face
module keeps its A and B; the map of weights tells to which rows of the fused output each B belongs. Only what has
`rank` columns is ever sent between tensor parallel processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from swift.errors import UnsupportedPlan
from swift.toolkit import adapter_names, base_model, name_map
from swift_backend_megatron.layout import Entry, Place

if TYPE_CHECKING:
    from swift.contracts import Run
    from swift_backend_megatron.model import Built


@dataclass(frozen=True)
class Wanted:
    """An adapter as PEFT describes it."""

    weight: str
    """Name on disk of the weight that it is added to."""
    a: str
    b: str
    rank: int
    scaling: float
    dropout: float


@dataclass(frozen=True)
class Rows:
    """To which outputs of a layer those of its adapters, end to end, belong."""

    order: torch.Tensor | None = None
    """Where each of the layer's outputs is found; None where both have the same order."""
    targets: torch.Tensor | None = None
    """The layer's outputs that have adapters, in the adapters' order, where not all of them have."""

    def add(self, output: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """The sum."""
        if self.targets is not None:
            return output.index_add(-1, self.targets, added)
        return output + (added if self.order is None else added.index_select(-1, self.order))


class Adapter(nn.Module):
    """A and B of one Hugging Face module, or what this process has of them."""

    def __init__(self, wanted: Wanted, inputs: int, outputs: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.wanted = wanted
        self.a = nn.Parameter(torch.zeros(wanted.rank, inputs, dtype=dtype, device=device))
        self.b = nn.Parameter(torch.zeros(outputs, wanted.rank, dtype=dtype, device=device))

    def forward(self, hidden: torch.Tensor, sent: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """What is added to the layer's output; `sent` is what happens to the few columns between A and B."""
        hidden = nn.functional.dropout(hidden, self.wanted.dropout, self.training)
        squeezed = sent(nn.functional.linear(hidden.to(self.a.dtype), self.a))
        return nn.functional.linear(squeezed, self.b) * self.wanted.scaling


class Adapted(nn.Module):
    """One of Megatron's linear layers with the adapters of the Hugging Face modules that it computes."""

    def __init__(self, layer: Any, adapters: list[Adapter], rows: Rows, config: Any) -> None:
        super().__init__()
        self.base_layer = layer
        self.adapters = nn.ModuleList(adapters)
        self.off = False
        """True while the model is viewed without its adapters."""
        self._rows = rows
        self._mode = parallel_mode(layer)
        self._cut = config.tensor_model_parallel_size > 1 and self._mode is not None
        self._sequence = config.sequence_parallel
        self._normed = hasattr(layer, "layer_norm_weight")
        for adapter in adapters:
            self._mark(adapter)

    def _mark(self, adapter: Adapter) -> None:
        """Say of each matrix whether it is cut, or the same everywhere with a gradient of parts."""
        if not self._cut:
            matrix: Any
            for matrix in (adapter.a, adapter.b):
                matrix.sequence_parallel = getattr(self.base_layer.weight, "sequence_parallel", False)
            return
        cut: Any
        whole: Any
        cut, whole, dimension = (adapter.b, adapter.a, 0) if self._mode == "column" else (adapter.a, adapter.b, 1)
        cut.tensor_model_parallel, cut.partition_dim, cut.partition_stride = True, dimension, 1
        whole.sequence_parallel = self._sequence

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_layer"), name)

    def forward(self, hidden: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        """The layer's output and bias."""
        if self.off:
            return self.base_layer(hidden, *arguments, **named)
        if self._normed:
            self.base_layer.return_layernorm_output = True
            try:
                (output, hidden), bias = self.base_layer(hidden, *arguments, **named)
            finally:
                self.base_layer.return_layernorm_output = False
        else:
            output, bias = self.base_layer(hidden, *arguments, **named)
        parts = [adapter(hidden, self._sent) for adapter in self.adapters]
        added = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return self._rows.add(output, added.to(output.dtype)), bias

    def _sent(self, squeezed: torch.Tensor) -> torch.Tensor:
        """Between A and B: `rank` columns, exchanged as the layer itself exchanges its input or output."""
        if not self._cut:
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
    """'column', 'row', or None where every process has the whole matrix."""
    mode = getattr(layer, "parallel_mode", None)
    return mode if mode in ("column", "row") else None


def adapt(run: Run, built: Built, twin: nn.Module) -> frozenset[str]:
    """Attach an adapter wherever PEFT has one on `twin`, the transformers model, and note where they lie.

    Answers the names on disk of all of them.
    """
    wanted = {each.weight: each for each in _wanted(twin)}
    owners = {
        id(parameter): (chunk, name)
        for chunk in built.chunks
        for name, parameter in chunk.named_parameters(remove_duplicate=False)
    }
    device = torch.device(run.topology.device) if run.topology else torch.device("cpu")
    found: dict[tuple[int, str], list[tuple[Wanted, list[Place]]]] = {}
    modules: dict[tuple[int, str], Any] = {}
    for weight, each in wanted.items():
        entry = built.layout[weight]
        for tensor in {id(place.tensor): place.tensor for place in entry.places}.values():
            chunk, name = owners[id(tensor)]
            path = name.rpartition(".")[0]
            key = (id(chunk), path)
            modules[key] = chunk
            places = [place for place in entry.places if place.tensor is tensor]
            found.setdefault(key, []).append((each, places))
    _refuse_what_has_no_linear_layer(wanted, found, modules)
    shapes = {weight: built.layout[weight].shape for weight in wanted}
    layout = built.layout
    for each in wanted.values():
        outputs, inputs = shapes[each.weight]
        layout[each.a] = Entry((each.rank, inputs))
        layout[each.b] = Entry((outputs, each.rank))
    for (_, path), members in found.items():
        chunk = modules[_, path]
        layer: Any = chunk.get_submodule(path)
        own = [_adapter(each, places, layer, built, device) for each, places in members]
        rows = _rows([places for _, places in members], layer.weight.shape[0], device)
        parent, _, attribute = path.rpartition(".")
        setattr(chunk.get_submodule(parent), attribute, Adapted(layer, own, rows, built.config))
    return frozenset(name for each in wanted.values() for name in (each.a, each.b))


def _wanted(twin: nn.Module) -> list[Wanted]:
    from peft.tuners.lora import LoraLayer
    from peft.tuners.tuners_utils import BaseTunerLayer

    from swift.toolkit import ADAPTER

    on_disk = adapter_names(twin)
    names = name_map(twin)
    found = []
    prefix = "base_model.model."
    for path, module in twin.named_modules():
        if not isinstance(module, BaseTunerLayer):
            continue
        plain = isinstance(module, LoraLayer) and isinstance(module.get_base_layer(), nn.Linear)
        weight = f"{path.removeprefix(prefix)}.weight"
        pieces = names.pieces(weight) if plain and weight in names.parameters() else ()
        if len(pieces) != 1 or pieces[0].numel != module.get_base_layer().weight.numel():
            raise UnsupportedPlan(
                f"An adapter on {path.removeprefix(prefix)} is not offered with Megatron: adapters go on linear layers "
                "that are one tensor on disk.",
                hint="Name the modules: --tuner.targets q_proj k_proj v_proj o_proj, or type --backend fsdp.",
            )
        dropout = module.lora_dropout[ADAPTER]
        found.append(
            Wanted(
                weight=pieces[0].name,
                a=on_disk[f"{path}.lora_A.{ADAPTER}.weight"],
                b=on_disk[f"{path}.lora_B.{ADAPTER}.weight"],
                rank=module.r[ADAPTER],
                scaling=float(module.scaling[ADAPTER]),
                dropout=float(getattr(dropout, "p", 0.0)),
            )
        )
    assert base_model(twin) is not twin
    return found


def _refuse_what_has_no_linear_layer(
    wanted: dict[str, Wanted],
    found: dict[tuple[int, str], list[tuple[Wanted, list[Place]]]],
    modules: dict[tuple[int, str], Any],
) -> None:
    for (key, path), members in found.items():
        layer = modules[key, path].get_submodule(path)
        experts = ".experts." in f".{path}."
        if experts or not hasattr(layer, "in_features") or getattr(layer, "weight", None) is None:
            raise UnsupportedPlan(
                f"An adapter on {members[0][0].weight.removesuffix('.weight')} is not offered with Megatron, which "
                f"computes it in {type(layer).__name__}.",
                hint="Name the modules: --tuner.targets q_proj k_proj v_proj o_proj, or type --backend fsdp.",
            )


def _adapter(wanted: Wanted, places: list[Place], layer: Any, built: Built, device: torch.device) -> Adapter:
    """The module, and its boxes in the layout: B follows the rows of the weight, A its columns."""
    rows = sum(place.sizes[0] for place in places)
    columns = places[0].sizes[1]
    first = places[0].offset[1]
    if any(place.offset[1] != first or place.sizes[1] != columns for place in places):
        raise UnsupportedPlan(f"{wanted.weight} is cut in a way that no adapter fits to.", hint="Type --backend fsdp")
    adapter = Adapter(wanted, columns, rows, built.dtype, device)
    built.layout[wanted.a].places.append(Place((0, first), (wanted.rank, columns), adapter.a, 0))
    start = 0
    for place in places:
        height = place.sizes[0]
        corner = (place.offset[0], 0)
        built.layout[wanted.b].places.append(Place(corner, (height, wanted.rank), adapter.b, start * wanted.rank))
        start += height
    return adapter


def _rows(members: list[list[Place]], outputs: int, device: torch.device) -> Rows:
    targets = [
        place.start // place.sizes[1] + row for places in members for place in places for row in range(place.sizes[0])
    ]
    if len(targets) < outputs:
        return Rows(targets=torch.tensor(targets, device=device))
    if targets == list(range(outputs)):
        return Rows()
    return Rows(order=torch.tensor(targets, device=device).argsort())


def switch(chunks: list[Any], off: bool) -> Callable[[], None]:
    """Turn all adapters off (or on); answers what puts them back."""
    layers = [module for chunk in chunks for module in chunk.modules() if isinstance(module, Adapted)]
    before = [layer.off for layer in layers]
    for layer in layers:
        layer.off = off

    def back() -> None:
        for layer, was in zip(layers, before, strict=True):
            layer.off = was

    return back

"""Which Hugging Face names the parameters of a model have on disk.

In memory a parameter may be something else than on disk: transformers stacks the experts of a mixture into one
parameter, renames modules of old checkpoints, ties weights; PEFT puts adapters inside. The canonical names of swift,
which checkpoints and exports use, are the names on disk. Nothing here is a list of known models: transformers' own
saving code is run on tensors without memory, and the views that come out say where each tensor on disk lies in its
parameter. PEFT is asked in the same way.
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import xxhash
from torch.overrides import TorchFunctionMode

from swift.models.heads import VALUE_HEAD, add_value_head, value_head_of
from swift.models.plain_lora import as_plain_lora
from swift.models.reordered import Reordered, find_reordered

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADAPTER = "default"
"""The name under which PEFT holds the one adapter of a model in memory; it is not part of names on disk."""
START = "start"
"""The name of the frozen adapter that is subtracted where adapters begin as a part of the weights."""


@dataclass(frozen=True)
class Piece:
    """A tensor on disk: the flat range of `numel` elements from `start` of the parameter that holds it."""

    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def view_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the part of `parameter` (contiguous, whole) that this piece is, as a view."""
        return parameter.view(-1).narrow(0, self.start, self.numel).view(self.shape)


class NameMap:
    """Names on disk of all weights of a transformers model, persistent buffers included, tied weights once."""

    def __init__(self, pieces: Mapping[str, tuple[Piece, ...]], reordered: Sequence[Reordered] = ()) -> None:
        """Take the pieces of each parameter, and those parameters that files hold in another order.

        The latter go by their names in memory.
        """
        self.reordered = tuple(reordered)
        self._pieces = dict(pieces)
        self._sources = {piece.name: (name, piece) for name, parts in self._pieces.items() for piece in parts}

    def pieces(self, parameter: str) -> tuple[Piece, ...]:
        """Return the tensors on disk that the parameter of this name in memory holds, in the order of their ranges."""
        return self._pieces[parameter]

    def parameters(self) -> list[str]:
        """Names in memory, tied weights once."""
        return list(self._pieces)

    def names(self) -> list[str]:
        """Names on disk."""
        return list(self._sources)

    def owner(self, name: str) -> tuple[str, Piece]:
        """Return the parameter that holds the tensor of this name on disk, and where."""
        return self._sources[name]


def name_map(model: torch.nn.Module) -> NameMap:
    """Return the names of a transformers model, or of the model inside a PEFT model.

    Depends on the architecture alone, so that it is valid for a model that is sharded, quantised or on the meta
    device. Names in memory are those of the model before any wrapper.
    """
    base = base_model(model)
    known = _maps.setdefault(base, {})
    has_value_head = value_head_of(base) is not None  # which tuners are given a model without
    if has_value_head not in known:
        known[has_value_head] = _map_of_copy(_meta_copy(base))
    return known[has_value_head]


def know_names(model: PreTrainedModel, names: NameMap) -> None:
    """Let `name_map` answer with the names of a model that was made like this one: it spares making another."""
    _maps.setdefault(model, {})[value_head_of(model) is not None] = names


def name_map_of_skeleton(skeleton: PreTrainedModel) -> NameMap:
    """Return the names of a model on the meta device that is unchanged since it was built."""
    skeleton.tie_weights()
    return _map_of_copy(skeleton)


def base_model(model: torch.nn.Module) -> Any:
    """Return the transformers model, taken out of PEFT's wrapper if there is one."""
    # What is inside the wrapper has a `peft_config` too.
    unwrapped: Any = getattr(model, "get_base_model", None)
    return model if unwrapped is None else unwrapped()


def cache_argument(model: torch.nn.Module) -> str:
    """Return the name of the key-value cache in the arguments and output of a model: later transformers renamed it."""
    return "cache" if "cache" in inspect.signature(base_model(model).forward).parameters else "past_key_values"


def canonical_parameters(model: torch.nn.Module) -> Iterator[tuple[list[Piece], torch.nn.Parameter]]:
    """Yield every parameter with its names on disk: of the whole model or, where adapters are trained, of the adapters.

    `model` is the transformers or PEFT model itself, without DDP around it. Adapters have their names in PEFT's
    `adapter_model.safetensors`. Where backends shard parameters in place, shapes are those of the whole parameter.
    """
    for name, pieces, tensor in _canonical(model, dict(model.named_parameters(remove_duplicate=False))):
        assert isinstance(tensor, torch.nn.Parameter), name
        yield pieces, tensor


def canonical_buffers(model: torch.nn.Module) -> Iterator[tuple[list[Piece], torch.Tensor]]:
    """Yield persistent buffers, which no optimizer updates but which belong to an export."""
    for _, pieces, tensor in _canonical(model, dict(model.named_buffers(remove_duplicate=False))):
        yield pieces, tensor


def canonical_weights(
    model: torch.nn.Module,
    whole: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.detach,
    part: Callable[[Piece, torch.Tensor], torch.Tensor] | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the stream of `swift_iter_weights`: all weights in fp32 and persistent buffers, or the adapters.

    `whole` gathers the whole tensor from the process's shard, and `part` one of the pieces of a tensor that has
    several, such as one expert of a stack. Adapters are plain LoRA, however they began.
    """
    yield from as_plain_lora(_whole_weights(model, whole, part))


def _whole_weights(
    model: torch.nn.Module,
    whole: Callable[[torch.Tensor], torch.Tensor],
    part_of: Callable[[Piece, torch.Tensor], torch.Tensor] | None,
) -> Iterator[tuple[str, torch.Tensor]]:
    for pieces, tensor in chain(canonical_parameters(model), canonical_buffers(model)):
        alone = part_of is not None and len(pieces) > 1
        gathered = tensor if alone else whole(tensor)
        for piece in pieces:
            part = part_of(piece, tensor) if alone and part_of is not None else piece.view_of(gathered)
            yield piece.name, part.float() if part.is_floating_point() else part


def _persistent_buffers(model: torch.nn.Module) -> Iterator[str]:
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name in module._buffers:
            if name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name


def adapter_names(model: torch.nn.Module) -> dict[str, str]:
    """Name in memory → name on disk of everything that PEFT saves for this model, and of a head for values.

    Frozen factors, of adapters that begin as a part of the weights, come before all others: `start_A` and `start_B`.
    """
    from peft import get_peft_model_state_dict

    state = {name: torch.empty(0, device="meta") for name, _ in model.named_parameters(remove_duplicate=False)}
    state |= {name: torch.empty(0, device="meta") for name in _persistent_buffers(model)}
    memory_names = {id(tensor): name for name, tensor in state.items()}
    peft_configs: Any = model.peft_config
    names: dict[str, str] = {}
    if START in peft_configs:
        saved = get_peft_model_state_dict(model, dict(state), adapter_name=START, save_embedding_layers=False)
        names |= {memory_names[id(tensor)]: name.replace(".lora_", ".start_") for name, tensor in saved.items()}
    saved = get_peft_model_state_dict(model, dict(state), adapter_name=ADAPTER, save_embedding_layers=False)
    names |= {memory_names[id(tensor)]: name for name, tensor in saved.items()}
    if getattr(peft_configs[ADAPTER], "bias", "none") == "lora_only":
        # PEFT trains and reads these, and looks for them by the wrong name when it saves.
        names |= {name: name for name in state if name.endswith(".base_layer.bias")}
    if value_head_of(base_model(model)) is not None:
        names[f"base_model.model.{VALUE_HEAD}"] = VALUE_HEAD
    return names


def _canonical(
    model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, list[Piece], torch.Tensor]]:
    if hasattr(model, "peft_config"):
        for memory, disk in adapter_names(model).items():
            if memory in tensors:
                yield memory, [Piece(disk, 0, whole_shape(tensors[memory]))], tensors[memory]
        return
    names = name_map(model)
    for name in names.parameters():
        if name in tensors:
            yield name, list(names.pieces(name)), tensors[name]


def generator_of(seed: int, name: str) -> torch.Generator:
    """Return a generator that depends on nothing but the seed and a name."""
    return torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(f"{seed}:{name}".encode()) >> 1)


def whole_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of the whole tensor of which a backend may have left a part."""
    # ZeRO-3 leaves an empty parameter behind that remembers its shape; a DTensor answers with its global one. Backends
    # that cut in other ways leave `whole_shape` behind.
    return tuple(getattr(tensor, "whole_shape", getattr(tensor, "ds_shape", tensor.shape)))


class _NoCopies(TorchFunctionMode):
    """Makes `contiguous()` return its tensor as it is: a view keeps telling where it lies."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0] if func is torch.Tensor.contiguous else func(*args, **(kwargs or {}))


_maps: WeakKeyDictionary[torch.nn.Module, dict[bool, NameMap]] = WeakKeyDictionary()


def _meta_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Build the same architecture on the meta device: plain names and shapes, whatever was done to the model itself."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        skeleton: PreTrainedModel = type(model)(config)
        if value_head_of(model) is not None:
            add_value_head(skeleton, config, torch.float32)
        skeleton.tie_weights()
    return skeleton


def _map_of_copy(skeleton: PreTrainedModel) -> NameMap:
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    ignored = set(skeleton._keys_to_ignore_on_save or ())
    state = {name: tensor for name, tensor in skeleton.state_dict().items() if name not in ignored}
    kept = remove_tied_weights_from_state_dict(state, skeleton)
    shapes = {name: tuple(tensor.shape) for name, tensor in kept.items()}
    # Fresh tensors, one storage each, so that a view tells by its storage which parameter it was cut from.
    originals = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    names_by_storage = {_storage(tensor): name for name, tensor in originals.items()}

    pieces: dict[str, list[Piece]] = {name: [] for name in originals}
    with _NoCopies():
        on_disk = revert_weight_conversion(skeleton, dict(originals))
    unplaced = {}
    for name, tensor in on_disk.items():
        owner = names_by_storage.get(_storage(tensor))
        if owner is None or not tensor.is_contiguous():
            unplaced[name] = tuple(tensor.shape)
        else:
            pieces[owner].append(Piece(name, int(tensor.storage_offset()), tuple(tensor.shape)))
    incomplete = {
        name: shapes[name]
        for name, parts in pieces.items()
        if sum(part.numel for part in parts) != math.prod(shapes[name])
    }
    reordered = []
    if unplaced or incomplete:
        reordered = find_reordered(
            type(skeleton).__name__, incomplete, unplaced, partial(revert_weight_conversion, skeleton)
        )
        pieces |= {name: [Piece(name, 0, shape)] for name, shape in incomplete.items()}
    parts = {name: tuple(sorted(parts, key=lambda piece: piece.start)) for name, parts in pieces.items()}
    return NameMap(parts, reordered)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)

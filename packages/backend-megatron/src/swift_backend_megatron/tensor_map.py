"""Megatron's model of a run, and where every Hugging Face tensor is stored in its parameters.

Megatron fuses query, key and value, gate and up, distributes experts and shards all of them. mcore-bridge knows how;
it is asked once, by letting it export addresses instead of values: what comes out at an index of a Hugging Face
tensor is which element of which process belongs there. Reading weights, checkpoints, exports and adapters all
follow from that map, and no architecture is known here.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from swift.contracts import ModelSource
from swift.errors import ModelError, UnsupportedLayout
from swift.toolkit import VALUE_HEAD, VALUE_HEAD_MODULE, LogitTransform, part_slices
from swift_backend_megatron.images import language_of

Offset = tuple[int, ...]

ROOM = 2**36
"""Addresses of each process: elements that it holds at most."""
SCALE = 4
"""Addresses are multiples of this, so that what the bridge adds to weights (norms around zero) shows."""
_TOGETHER = 2**18
"""Elements whose addresses are looked at together."""


def region_of(offset: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    """Return the index of a box in its tensor."""
    return tuple(slice(start, start + size) for start, size in zip(offset, sizes, strict=True))


@dataclass(frozen=True)
class Tile:
    """A rectangle of a Hugging Face tensor, stored row after row in one parameter."""

    offset: Offset
    """Its first corner in the Hugging Face tensor."""
    sizes: Offset
    tensor: torch.Tensor
    """Parameter or buffer."""
    start: int
    """First element in the flat parameter."""
    shift: float = 0.0
    """The Hugging Face value minus the stored one."""
    replica: bool = False
    """True where another process of this pipeline has the same weights and saves them (tied embeddings)."""

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    @property
    def region(self) -> tuple[slice, ...]:
        """Return its index in the Hugging Face tensor."""
        return region_of(self.offset, self.sizes)

    def views(self, flat: torch.Tensor, first: int = 0) -> list[tuple[Offset, torch.Tensor]]:
        """Return what `flat`, the range of the flat parameter from `first` on, has of the box: offsets and views."""
        inner = part_slices(self.sizes, self.start, first, flat)
        return [
            (tuple(own + corner for own, corner in zip(self.offset, offset, strict=True)), view)
            for offset, view in inner
        ]


@dataclass
class MappedTensor:
    """A Hugging Face tensor: its whole shape, and the boxes that this process has."""

    shape: tuple[int, ...]
    tiles: list[Tile] = field(default_factory=list)
    trained: bool = True
    """False for buffers, which no optimizer updates."""


TensorMap = dict[str, MappedTensor]
"""By the name on disk; every name of the model, also of those that this process has nothing of."""


@dataclass
class MegatronModel:
    """Chunks of layers without weights, and where each weight belongs in them."""

    chunks: list[Any]
    """Megatron's GPT models: one, or one per virtual stage."""
    config: Any
    """Megatron's configuration of the model."""
    tensor_map: TensorMap
    """By names on disk: of the model and, where adapters are trained, of the adapters too."""
    source: ModelSource
    dtype: torch.dtype
    vocabulary: int
    """Tokens; the embedding's rows beyond them are padding."""
    transform: LogitTransform
    unembeds: bool
    """Whether the model ends in logits over the vocabulary; otherwise in a head of its own, or in none."""
    pooling: str
    """Which hidden states make the vector of a segment; see `swift.models.pooling`."""
    towered: bool = False
    """Whether chunks have an encoder for images beside the language model."""
    sees: bool = False
    """Whether weights are trained that only images reach."""
    rates: dict[int, float] = field(default_factory=dict)
    """Factors on the learning rate, by the identity of Megatron's parameters; those that are not in it have 1."""
    adapter_tensors: frozenset[str] = frozenset()
    """Names on disk of all adapters, also of those that other processes have; empty where all weights are trained."""
    saved_with_adapters: dict[str, str] = field(default_factory=dict)
    """Those of them that are whole weights: name on disk → name of the weight that it starts from."""


def map_tensors(chunks: Sequence[torch.nn.Module], bridge: Any, source: ModelSource) -> TensorMap:
    """Ask mcore-bridge where every tensor is stored (collective); raise UnsupportedLayout if one has no location."""
    memory, names = _Memory(chunks), set(source.names())
    mapped: TensorMap = {}
    with _addresses(bridge, memory):
        for name, scaled in _fused(bridge.export_weights(list(chunks)), names):
            mapped[_name_on_disk(name, names)] = memory.entry(scaled)
    _map_tied(chunks, bridge, memory, mapped)
    if VALUE_HEAD in names:
        mapped[VALUE_HEAD] = _value_head(chunks, memory, source)
    _check(mapped, memory, source)
    return mapped


def _fused(exported: Iterator[tuple[str, torch.Tensor]], names: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what the bridge exports, gate and up of an MLP as one where they are one on disk (GLM-4)."""
    gate = None
    for name, scaled in exported:
        fused = name.replace(".up_proj.", ".gate_up_proj.")
        if name.replace(".gate_proj.", ".gate_up_proj.") in names and name not in names:
            gate = scaled
        elif fused != name and fused in names and gate is not None:
            yield fused, torch.cat([gate, scaled])
        else:
            yield name, scaled


def _name_on_disk(name: str, names: Collection[str]) -> str:
    """Return what files call a tensor of the bridge's: models that are a decoder alone lack the decoder's prefix."""
    short = name.partition(".")[2]
    return short if short in names and name not in names else name


_Span = tuple[tuple[int, ...], int]


def _scaled_addresses(span: _Span, device: torch.device) -> torch.Tensor:
    shape, start = span
    scaled = torch.arange(math.prod(shape), dtype=torch.float64, device=device).add_(start).mul_(SCALE)
    return scaled.view(shape)


class _Memory:
    """Parameters and buffers of this process, end to end in one range of addresses."""

    def __init__(self, chunks: Sequence[torch.nn.Module]) -> None:
        self.names: dict[int, str] = {}
        self.tensors: list[torch.Tensor] = []
        self.starts: list[int] = []
        self.found: set[int] = set()
        self._by_pointer: dict[int, int] = {}
        self._buffers: set[int] = set()
        end = 0
        for chunk in chunks:
            for kind, named in (("parameter", chunk.named_parameters()), ("buffer", chunk.named_buffers())):
                for name, tensor in named:
                    if tensor.data_ptr() in self._by_pointer or not tensor.numel():
                        continue
                    index = len(self.tensors)
                    self._by_pointer[tensor.data_ptr()] = index
                    self.names[index] = name
                    if kind == "buffer":
                        self._buffers.add(index)
                    self.tensors.append(tensor)
                    self.starts.append(end)
                    end += tensor.numel()
        self._first = dist.get_rank() * ROOM
        assert end < ROOM

    def scaled(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the addresses of a tensor's elements, in its shape."""
        return _scaled_addresses(self.span(tensor), tensor.device)

    def span(self, tensor: torch.Tensor) -> _Span:
        """Return a tensor's shape, and the address of its first element."""
        return tuple(tensor.shape), self._first + self.starts[self._by_pointer[tensor.data_ptr()]]

    def entry(self, scaled: torch.Tensor) -> MappedTensor:
        """Return what this process has of the Hugging Face tensor in which these addresses came out."""
        entry = MappedTensor(tuple(scaled.shape))
        runs = _runs(scaled, self._first) if scaled.ndim <= 2 else _runs_of_blocks(scaled, self._first)
        for offset, sizes, address, shift in runs:
            index = bisect_right(self.starts, address) - 1
            self.found.add(index)
            entry.trained = index not in self._buffers
            entry.tiles.append(Tile(offset, sizes, self.tensors[index], address - self.starts[index], shift))
        return entry

    def index(self, tensor: torch.Tensor) -> int:
        return self._by_pointer[tensor.data_ptr()]

    def lost(self) -> list[str]:
        """Return the names of parameters that belong to no Hugging Face tensor."""
        return [name for index, name in self.names.items() if index not in self.found and index not in self._buffers]


@contextlib.contextmanager
def _addresses(bridge: Any, memory: _Memory) -> Iterator[None]:
    """Make the bridge export addresses."""
    export = bridge._get_weight

    def get(weight: Any, *arguments: Any, **named: Any) -> Any:
        if torch.is_tensor(weight):
            weight = memory.scaled(weight)
        elif weight is not None:
            weight = [memory.scaled(each) for each in weight]
        return export(weight, *arguments, **named)

    bridge._get_weight = get
    bridge._set_module = partial(_export_module, bridge, memory)
    try:
        yield
    finally:
        del bridge._get_weight, bridge._set_module


def _export_module(
    bridge: Any, memory: _Memory, module: torch.nn.Module | None, _: Any, prefix: str, to_mcore: bool
) -> dict[str, torch.Tensor]:
    """Return the addresses of a module of transformers, which the first stage has whole, on every stage."""
    assert not to_mcore
    held = None if module is None else {name: memory.span(each) for name, each in module.state_dict().items()}
    everyone: list[dict[str, _Span] | None] = [held]
    if bridge.pp_size > 1:
        everyone *= bridge.pp_size
        dist.all_gather_object(everyone, held, group=bridge.pp_group)
    device = memory.tensors[0].device
    spans = {name: span for each in everyone if each is not None for name, span in each.items()}
    return {f"{prefix}{name}": _scaled_addresses(span, device) for name, span in spans.items()}


MemoryRun = tuple[Offset, Offset, int, float]
"""Elements that lie one after the other here, a rectangle of a Hugging Face tensor: offset, sizes, address, shift."""


def _runs(scaled: torch.Tensor, first: int) -> Iterator[MemoryRun]:
    """Yield the runs of this process, a few rows at a time: an embedding's addresses are gigabytes."""
    if scaled.ndim < 2:
        for (_, column), (_, width), address, shift in _runs(scaled.reshape(1, -1), first):
            yield ((column,), (width,), address, shift) if scaled.ndim else ((), (), address, shift)
        return
    height = max(1, _TOGETHER // max(1, scaled.shape[1]))
    last: MemoryRun | None = None
    for top in range(0, scaled.shape[0], height):
        for (row, column), sizes, address, shift in _runs_of(scaled[top : top + height].cpu().numpy(), first):
            run = (top + row, column), sizes, address, shift
            if last is not None and _goes_on(last, run):
                (rows, width), (more, _) = last[1], sizes
                last = last[0], (rows + more, width), last[2], shift
                continue
            if last is not None:
                yield last
            last = run
    if last is not None:
        yield last


def _runs_of_blocks(scaled: torch.Tensor, first: int) -> Iterator[MemoryRun]:
    """Yield the runs of a tensor with more than two dimensions, whose blocks a process has whole or not at all."""
    inner = tuple(scaled.shape[1:])
    for (row, column), (rows, width), address, shift in _runs(scaled.flatten(1), first):
        if column or width != scaled[0].numel():
            raise UnsupportedLayout(
                f"Megatron has shards of a tensor of shape {tuple(scaled.shape)} that are not whole blocks of it.",
                hint="Type --backend fsdp (or deepspeed) for this model.",
            )
        yield (row, *(0 for _ in inner)), (rows, *inner), address, shift


def _goes_on(last: MemoryRun, run: MemoryRun) -> bool:
    """Whether a rectangle is the lower part of the one before."""
    (row, column), (rows, width), address, shift = last
    return run[0] == (row + rows, column) and run[1][1] == width and run[2:] == (address + rows * width, shift)


def _runs_of(scaled: np.ndarray, first: int) -> Iterator[MemoryRun]:
    addresses = np.floor(scaled / SCALE + 0.5)
    shifts = scaled - addresses * SCALE
    addresses -= first
    mine = (addresses >= 0) & (addresses < ROOM)
    rows = np.nonzero(mine.any(1))[0]
    if not len(rows):
        return
    part = mine[rows]
    left, right = part.argmax(1), scaled.shape[1] - part[:, ::-1].argmax(1)
    heads = addresses[rows, left].astype(np.int64)
    tails = addresses[rows, right - 1].astype(np.int64)
    if (part.sum(1) != right - left).any() or (tails - heads != right - left - 1).any():
        # Not one run per row: element by element, joined where they follow each other. Biases mostly.
        for row in rows:
            yield from _runs_of_row(int(row), addresses[row], shifts[row], mine[row])
        return
    widths = right - left
    same = (
        (np.diff(rows) == 1) & (np.diff(left) == 0) & (np.diff(widths) == 0) & (np.diff(heads) == widths[:-1])
        & (np.diff(shifts[rows, left]) == 0)
    )  # fmt: skip
    edges = np.concatenate([[0], np.nonzero(~same)[0] + 1, [len(rows)]])
    for begin, end in pairwise(edges):
        shift = float(shifts[rows[begin], left[begin]])
        corner = (int(rows[begin]), int(left[begin]))
        yield corner, (int(end - begin), int(widths[begin])), int(heads[begin]), shift


def _runs_of_row(row: int, addresses: np.ndarray, shifts: np.ndarray, mine: np.ndarray) -> Iterator[MemoryRun]:
    columns = np.nonzero(mine)[0]
    jumps = (np.diff(columns) != 1) | (np.diff(addresses[columns]) != 1)
    edges = np.concatenate([[0], np.nonzero(jumps)[0] + 1, [len(columns)]])
    for begin, end in pairwise(edges):
        column = int(columns[begin])
        yield (row, column), (1, int(end - begin)), int(addresses[column]), float(shifts[column])


def _map_tied(chunks: Sequence[torch.nn.Module], bridge: Any, memory: _Memory, mapped: TensorMap) -> None:
    """Map the last stage's copy of tied embeddings, which the bridge does not export."""
    from megatron.core import parallel_state

    for chunk in chunks:
        weight = getattr(getattr(language_of(chunk), "output_layer", None), "weight", None)
        if weight is None or memory.index(weight) in memory.found or not chunk.share_embeddings_and_output_weights:
            continue
        (name,) = bridge._convert_hf_state_dict({bridge.hf_embed_key: None}, to_mcore=False)
        entry = mapped[name]
        rows = weight.shape[0]
        first = parallel_state.get_tensor_model_parallel_rank() * rows
        kept = max(0, min(rows, entry.shape[0] - first))
        if kept:
            entry.tiles.append(Tile((first, 0), (kept, entry.shape[1]), weight, 0, replica=True))
        memory.found.add(memory.index(weight))


def _value_head(chunks: Sequence[torch.nn.Module], memory: _Memory, source: ModelSource) -> MappedTensor:
    """Return where the head for values is stored, of which the bridge knows nothing."""
    entry = MappedTensor(source.shape(VALUE_HEAD))
    for head in filter(None, (getattr(chunk, VALUE_HEAD_MODULE, None) for chunk in chunks)):
        memory.found.add(memory.index(head.weight))
        entry.tiles.append(Tile((0, 0), (entry.shape[0], entry.shape[1]), head.weight, 0))
    return entry


def _check(mapped: TensorMap, memory: _Memory, source: ModelSource) -> None:
    """Raise, on every process alike, unless all weights on disk have a location and all parameters a name."""
    names = set(source.names())
    problems = [f"{name} has no location in it" for name in sorted(names - mapped.keys())]
    problems += [f"{name} is not a weight of the model" for name in sorted(mapped.keys() - names)]
    for name in sorted(names & mapped.keys()):
        if mapped[name].shape != source.shape(name):
            problems.append(f"{name} has shape {mapped[name].shape} in it, not {source.shape(name)}")
    problems += [f"its parameter {name} has no name on disk" for name in memory.lost()]
    everyone: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, problems[:3])
    found = [problem for own in everyone for problem in own]
    if found:
        raise UnsupportedLayout(
            f"mcore-bridge lays {source.config.model_type} out for Megatron in another way than its files say: "
            f"{found[0]}.",
            hint="Type --backend fsdp (or deepspeed) for this model.",
        )
    if not names:
        raise ModelError("The model has no weights.")

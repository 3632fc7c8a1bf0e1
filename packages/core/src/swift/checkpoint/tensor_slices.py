"""TensorSlices: a tensor of which this process holds rectangular views, saved from and loaded into them in place.

An engine that keeps its parameters in flat buffers or in layouts of its own presents that memory as slices of the
tensor that a Hugging Face checkpoint would hold. The planner of torch distributed checkpoint then moves exactly the
parts that each process has: no gather, and any layout reads what any other wrote.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

Offset = tuple[int, ...]
TensorSlice = tuple[Offset, torch.Tensor]


class TensorSlices(torch.Tensor):
    """A global tensor known by `shape`, of which this process holds `slices`: (offset of its first corner, view).

    It implements the protocol that DTensor also implements (`__create_write_items__` and the two next to it) and
    nothing else: no arithmetic, no copies.
    """

    slices: dict[Offset, torch.Tensor]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch itself does

    @staticmethod
    def __new__(cls, shape: Sequence[int], slices: Iterable[TensorSlice], *, dtype: torch.dtype) -> TensorSlices:
        held = {tuple(map(int, offset)): view.detach() for offset, view in slices}
        for offset, view in held.items():
            ends = [start + length for start, length in zip(offset, view.shape, strict=True)]
            if len(offset) != len(shape) or any(end > size for end, size in zip(ends, shape, strict=True)):
                raise ValueError(f"A slice of shape {tuple(view.shape)} at {offset} exceeds the shape {tuple(shape)}.")
            if view.dtype != dtype:
                raise ValueError(f"A slice at {offset} has dtype {view.dtype}, but the tensor has {dtype}.")
        tensor = torch.Tensor._make_wrapper_subclass(cls, torch.Size(shape), dtype=dtype)
        tensor.slices = held
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own annotation leaves out `func`
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise TypeError(f"TensorSlices does not support {func}")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch leaves it untyped
        held = ", ".join(f"{tuple(view.shape)} at {offset}" for offset, view in self.slices.items())
        return f"TensorSlices({tuple(self.shape)}, {self.dtype}: {held or 'nothing here'})"

    def __create_write_items__(self, fqn: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(fqn, torch.Size(offset)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(torch.Size(offset), view.size()),
                    properties=TensorProperties(dtype=self.dtype),
                    size=self.size(),
                ),
            )
            for offset, view in self.slices.items()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(offset), view.size()) for offset, view in self.slices.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        return self.slices[tuple(index.offset or ())]


def flat_slices(shape: Sequence[int], start: int, view: torch.Tensor) -> list[TensorSlice]:
    """Cut a flat range of a tensor into rectangles.

    `view` holds the elements from `start` on, in row-major order, of a tensor of `shape`; it is one-dimensional, or its
    elements are tensors themselves. A range that begins or ends inside a row becomes a piece of that row, the whole
    rows between become one slice. All slices are views of `view`.
    """
    length = len(view)
    if length == 0:
        return []
    if not shape:
        return [((), view[0])]
    if len(shape) == 1:
        return [((start,), view)]

    inner = math.prod(shape[1:])
    end = start + length

    def within_one_row(first: int, last: int) -> list[TensorSlice]:
        row = first // inner
        part = view[first - start : last - start]
        return [
            ((row, *offset), each.unsqueeze(0)) for offset, each in flat_slices(shape[1:], first - row * inner, part)
        ]

    slices: list[TensorSlice] = []
    position = start
    if position % inner:
        stop = min(end, (position // inner + 1) * inner)
        slices += within_one_row(position, stop)
        position = stop
    rows = (end - position) // inner
    if rows:
        stop = position + rows * inner
        corner = (position // inner, *([0] * (len(shape) - 1)))
        slices.append((corner, view[position - start : stop - start].view(rows, *shape[1:], *view.shape[1:])))
        position = stop
    if position < end:
        slices += within_one_row(position, end)
    return slices


def part_slices(shape: Sequence[int], start: int, held_start: int, held: torch.Tensor) -> list[TensorSlice]:
    """TensorSlices of a Hugging Face tensor that is a flat range of a bigger parameter.

    The tensor of `shape` begins at element `start` of the parameter (one expert of a fused stack, say); the
    one-dimensional `held` is the range of the parameter, from `held_start` on, that this process has.
    """
    first = max(start, held_start)
    last = min(start + math.prod(shape), held_start + held.numel())
    if first >= last:
        return []
    return flat_slices(shape, first - start, held[first - held_start : last - held_start])


def region_slices(
    shape: Sequence[int], start: int, whole: Sequence[int], region: Sequence[slice], held: torch.Tensor
) -> list[TensorSlice]:
    """TensorSlices of a Hugging Face tensor that is a flat range of a bigger parameter, held as a rectangle of that.

    The tensor of `shape` begins at element `start` of the parameter of shape `whole`, of which this process has
    `region`: `held`.
    """
    offset = tuple(part.start for part in region)
    if tuple(shape) == tuple(whole):
        return [(offset, held)] if held.numel() else []
    alike = 0  # last dimensions, of which the tensor has whole rows
    while alike < min(len(shape), len(whole) - 1) and shape[-1 - alike] == whole[-1 - alike]:
        alike += 1
    while start % math.prod(shape[len(shape) - alike :]):
        alike -= 1
    inner, outer = math.prod(shape[len(shape) - alike :]), len(whole) - alike
    lead = tuple(shape[: len(shape) - alike])
    first, last = start // inner, start // inner + math.prod(lead)
    rows = [math.prod(whole[dim + 1 : outer]) for dim in range(outer)]
    # Of the parameter's first dimension, only what the tensor spans.
    near = range(max(region[0].start, first // rows[0]), min(region[0].stop, -(-last // rows[0])))
    spans = [near, *(range(part.start, part.stop) for part in region[1:outer])]
    slices: list[TensorSlice] = []
    for index in product(*spans[:-1]):
        begin = sum(each * size for each, size in zip(index, rows, strict=False)) + spans[-1].start
        end = begin + len(spans[-1])
        low, high = max(begin, first), min(end, last)
        if low >= high or not held.numel():
            continue
        run = held[tuple(each - part.start for each, part in zip(index, region, strict=False))]
        skipped = spans[-1].start - region[outer - 1].start
        view = run[skipped + low - begin : skipped + high - begin]
        slices += [((*corner, *offset[outer:]), each) for corner, each in flat_slices(lead, low - first, view)]
    return slices

"""Reading rectangles out of safetensors files: straight into memory that is there already, with little besides."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import torch

from swift.checkpoint.safetensors_write import DTYPE_NAMES, DTYPES
from swift.errors import CheckpointError
from swift.safetensors_header import read_header

# Pieces shorter than this are read together with what lies between them: the kernel reads whole pages anyway.
_PAGE = 4096
_BLOCK = 8 * 2**20


class SafetensorsFile:
    """A file that is open for reading. Bytes go from it to where they are wanted, without a copy in between."""

    def __init__(self, path: Path) -> None:
        header = read_header(path, CheckpointError)
        self._handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)
        self._path = path
        self._entries = header.entries
        self._data = header.data

    def check(self, name: str, key: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
        """Raise `CheckpointError` unless the entry `key` is what the index says of a part of the tensor `name`."""
        entry = self._entries.get(key)
        if entry is None:
            raise CheckpointError(f"{self._path} lacks {key}, a part of {name}.")
        if entry.shape != sizes or DTYPES.get(entry.dtype) != dtype:
            raise CheckpointError(
                f"{self._path} has {key} as {entry.dtype} of shape {entry.shape}, but the index declares "
                f"{DTYPE_NAMES[dtype]} of shape {sizes}."
            )

    def read_into(self, target: torch.Tensor, key: str, start: Sequence[int], lengths: Sequence[int]) -> None:
        """Copy the rectangle of the entry `key` that begins at `start` into `target`, converting its dtype."""
        entry = self._entries[key]
        shape, dtype = entry.shape, DTYPES[entry.dtype]
        if not math.prod(lengths):
            return
        plain = target.detach()
        direct = plain.device.type == "cpu" and plain.dtype == dtype and plain.is_contiguous()
        memory = plain if direct else torch.empty(tuple(lengths), dtype=dtype)
        self._read(memory, self._data + entry.start, shape, tuple(start), tuple(lengths))
        if not direct:
            plain.copy_(memory.view(plain.shape))

    def _read(
        self,
        memory: torch.Tensor,
        position: int,
        shape: tuple[int, ...],
        start: tuple[int, ...],
        lengths: tuple[int, ...],
    ) -> None:
        """Fill contiguous `memory` with a rectangle of the tensor of `shape` whose bytes begin at `position`."""
        runs = _runs(shape, start, lengths)
        run = memory.numel() // len(runs)
        width = memory.element_size()
        if len(runs) == 1 or run * width >= _PAGE:
            flat = _bytes_of(memory)
            for number, first in enumerate(runs):
                self._fill(flat[number * run * width : (number + 1) * run * width], position + first * width)
            return
        # Short pieces: whole rows, a block of them at a time, of which the pieces are cut out.
        inner = math.prod(shape[1:])
        cut = tuple(slice(first, first + length) for first, length in zip(start[1:], lengths[1:], strict=True))
        rows = max(1, _BLOCK // (inner * width))
        memory = memory.view(lengths)
        for row in range(0, lengths[0], rows):
            count = min(rows, lengths[0] - row)
            block = torch.empty((count, *shape[1:]), dtype=memory.dtype)
            self._fill(_bytes_of(block), position + (start[0] + row) * inner * width)
            memory[row : row + count] = block[(slice(None), *cut)]

    def _fill(self, buffer: memoryview, position: int) -> None:
        while buffer:
            count = os.preadv(self._handle, [buffer], position)
            if not count:
                raise CheckpointError(f"{self._path} ends early.")
            buffer, position = buffer[count:], position + count


def _runs(shape: tuple[int, ...], start: tuple[int, ...], lengths: tuple[int, ...]) -> list[int]:
    """Return the starts of a rectangle's contiguous runs, which are all equally long, counted in elements."""
    depth = len(shape)
    while depth and lengths[depth - 1] == shape[depth - 1]:
        depth -= 1
    # From here on rows are whole; the dimension before may be cut, as long as what is outside of it are single rows.
    outer = max(depth - 1, 0)
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    within = sum(start[dim] * strides[dim] for dim in range(outer, depth))
    corners: Iterator[tuple[int, ...]] = product(
        *(range(start[dim], start[dim] + lengths[dim]) for dim in range(outer))
    )
    return [within + sum(at * stride for at, stride in zip(corner, strides, strict=False)) for corner in corners]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    view: memoryview = tensor.view(-1).view(torch.uint8).numpy().data
    return view

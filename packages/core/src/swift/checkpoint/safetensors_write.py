"""Files of a checkpoint that hold tensors: safetensors, written as a stream."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from swift.checkpoint.checksums import FileRecord, HashingFile

# Names of element types in the safetensors format.
DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the elements in row-major order; a copy only where the tensor is elsewhere or not contiguous."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def safetensors_layout(
    entries: Mapping[str, tuple[torch.dtype, Sequence[int]]], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, int]]:
    """Return the head of a safetensors file, and where in the file each tensor begins, in the order to write them."""
    head: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    starts: dict[str, int] = {}
    position = 0
    # Wide elements first: every tensor is then aligned to its element size, which readers rely on.
    for name in sorted(entries, key=lambda name: -entries[name][0].itemsize):
        dtype, shape = entries[name]
        size = math.prod(shape) * dtype.itemsize
        head[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [position, position + size]}
        starts[name] = position
        position += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    lead = struct.pack("<Q", len(text)) + text
    return lead, {name: start + len(lead) for name, start in starts.items()}


def write_safetensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> FileRecord:
    """Write a safetensors file one tensor at a time."""
    entries = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    lead, starts = safetensors_layout(entries, metadata)
    with HashingFile(path) as file:
        file.append(lead)
        for name in starts:
            file.append(tensor_bytes(tensors[name]))
        return file.record()

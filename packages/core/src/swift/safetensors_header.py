"""Reader and validator of safetensors headers, without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from swift.untrusted import Failure, json_kind, open_regular, parse_json, shown

LONGEST = 100_000_000
"""Maximum size of a header in bytes, by the format."""
_DIMENSIONS = 16
_LARGEST = 1 << 60
# Bits of an element, by dtype name of the format.
_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "BF16": 16, "F16": 16, "I16": 16,
    "U16": 16, "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
FLOATING = frozenset(name for name in _BITS if name.startswith(("F", "BF")))


@dataclass(frozen=True)
class Entry:
    """One tensor, as the header describes it."""

    dtype: str
    """By the format's name: 'BF16'."""
    shape: tuple[int, ...]
    start: int
    """Offset of its bytes in the data."""
    end: int


@dataclass(frozen=True)
class Header:
    """Header of a file: its tensors, and the offset of their data."""

    data: int
    """Offset of the data in the file."""
    entries: dict[str, Entry]
    content: dict[str, Any]
    """The header itself, with its metadata."""


def read_header(path: Path, error: Failure) -> Header:
    """Return the header of a file whose tensors fill it without unused bytes; raise `error` for any other."""
    with open_regular(path, error) as file:
        size = file.seek(0, 2)
        file.seek(0)
        content, length = _content(file, size, path, error)
    entries = {name: _entry(name, value, path, error) for name, value in content.items() if name != "__metadata__"}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != end:
            state = "overlaps another tensor" if entry.start < end else "has unused bytes before it"
            raise _damaged(path, f"{name} {state}", error)
        end = entry.end
    if 8 + length + end != size:
        raise error(
            f"{shown(path)} should have {8 + length + end:,} bytes but has {size:,}: it is truncated or altered.",
            hint="Copy or download it again.",
        )
    return Header(8 + length, entries, content)


def _content(file: BinaryIO, size: int, path: Path, error: Failure) -> tuple[dict[str, Any], int]:
    lead = file.read(8)
    length = int.from_bytes(lead, "little")
    if len(lead) < 8 or length > min(size - 8, LONGEST):
        raise _damaged(path, "it does not start with the length of a header", error)
    try:
        content = parse_json(file.read(length), f"the header of {shown(path)}", error, depth=4)
    except error as problem:
        raise _damaged(path, problem.message.rstrip("."), error) from None
    if not isinstance(content, dict):
        raise _damaged(path, f"its header is {json_kind(content)}", error)
    return content, length


def _entry(name: str, value: Any, path: Path, error: Failure) -> Entry:
    if not isinstance(value, dict):
        raise _damaged(path, f"the entry of {name} is {json_kind(value)}", error)
    dtype: Any = value.get("dtype")
    shape: Any = value.get("shape")
    offsets: Any = value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise _damaged(path, f"{name} has the unknown dtype {dtype!r:.60}", error)
    if not _are_sizes(shape) or len(shape) > _DIMENSIONS:
        raise _damaged(path, f"{name} has no valid shape", error)
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise _damaged(path, f"{name} has no valid data_offsets", error)
    start, end = offsets
    bits = math.prod(shape) * _BITS[dtype]
    if bits % 8 or end - start != bits // 8:
        raise _damaged(path, f"{name} has {end - start} bytes, which do not match its shape {shape} of {dtype}", error)
    return Entry(dtype, tuple(shape), start, end)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each <= _LARGEST for each in value)


def _damaged(path: Path, reason: str, error: Failure) -> Exception:
    return error(
        f"{shown(path)} is not a safetensors file, or its header is damaged: {reason}.",
        hint="Copy or download it again.",
    )

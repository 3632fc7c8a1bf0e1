"""Ways to spoil a file that holds a JSON object or tensors."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DEEP = 100_000


def edit(file: Path, **changes: Any) -> None:
    """Set keys of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def set_in(file: Path, keys: str, value: Any) -> None:
    """Set one nested key, given as 'a.b.0'."""
    content = json.loads(file.read_text())
    place = content
    *parents, leaf = keys.split(".")
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    if isinstance(place, list):
        place[int(leaf)] = value
    else:
        place[leaf] = value
    file.write_text(json.dumps(content))


def drop_in(file: Path, keys: str) -> None:
    """Take one nested key out."""
    content = json.loads(file.read_text())
    place = content
    *parents, leaf = keys.split(".")
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    del place[leaf]
    file.write_text(json.dumps(content))


def _replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
        file.unlink(missing_ok=True)
        make(file)

    return spoil


def _content(data: bytes) -> Callable[[Path], None]:
    return _replaced(lambda file: file.write_bytes(data))


def _large(file: Path) -> None:
    with file.open("wb") as handle:
        handle.truncate(3 << 30)


NOT_A_FILE: Mapping[str, Callable[[Path], None]] = {
    "a pipe": _replaced(os.mkfifo),
    "a folder": _replaced(lambda file: file.mkdir()),
    "a link to a device that never ends": _replaced(lambda file: file.symlink_to("/dev/zero")),
    "a link to itself": _replaced(lambda file: file.symlink_to(file.name)),
    "a link to nothing": _replaced(lambda file: file.symlink_to("nowhere")),
    "3 GiB of nothing": _replaced(_large),
}
NOT_AN_OBJECT: Mapping[str, Callable[[Path], None]] = {
    "empty": _content(b""),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-20]) and None,
    "a list": _content(b"[1]"),
    "null": _content(b"null"),
    "a number": _content(b"17"),
    "bytes": _content(bytes(range(256))),
    "UTF-16": lambda file: file.write_bytes(file.read_text().encode("utf-16")) and None,
    "lists without end": _content(b"[" * DEEP),
    "objects without end": _content(b'{"a":' * DEEP),
    "a number of a million digits": _content(b'{"model_type": ' + b"9" * 1_000_000 + b"}"),
    "NUL": _content(b"\0" * 100),
}


def tensors_of(file: Path) -> dict[str, Any]:
    """All tensors of a safetensors file."""
    from safetensors.torch import load_file

    found: dict[str, Any] = load_file(file)
    return found


def put_tensors(file: Path, tensors: Mapping[str, Any]) -> None:
    """Write them back."""
    from safetensors.torch import save_file

    save_file(dict(tensors), file, {"format": "pt"})


def header_of(file: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and the data behind it."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def put_header(file: Path, header: Any, data: bytes, *, length: int | None = None) -> None:
    """Write a safetensors file with this header, which may say that it has another length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)

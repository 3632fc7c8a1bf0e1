"""Ways to spoil a file that holds JSON or tensors."""

from __future__ import annotations

import copy
import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DEEP = 100_000
GONE = "(the key is gone)"
"""Put in the keys of a value, it takes the key out."""
Keys = tuple[str | int, ...]
Spoil = Callable[[Path], object]


def every_key(document: Any, parent: Keys = ()) -> list[Keys]:
    """Return the keys of every value inside a JSON document."""
    members = (
        document.items() if isinstance(document, dict) else enumerate(document if isinstance(document, list) else ())
    )
    return [each for key, value in members for each in ((*parent, key), *every_key(value, (*parent, key)))]


def put(document: Any, keys: Keys, value: Any) -> Any:
    """Return a copy of a JSON document with another value at a keys."""
    document = copy.deepcopy(document)
    target = document
    for key in keys[:-1]:
        target = target[key]
    if value == GONE:
        del target[keys[-1]]
    else:
        target[keys[-1]] = value
    return document


def put_in(file: Path, keys: Keys, value: Any) -> None:
    """Change one value of a JSON file."""
    file.write_text(json.dumps(put(json.loads(file.read_text()), keys, value)))


def edit(file: Path, **changes: Any) -> None:
    """Set keys of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def _replaced(make: Spoil) -> Spoil:
    def spoil(file: Path) -> None:
        file.unlink(missing_ok=True)
        make(file)

    return spoil


def _content(data: bytes) -> Spoil:
    return _replaced(lambda file: file.write_bytes(data))


def _large(file: Path) -> None:
    with file.open("wb") as handle:
        handle.truncate(3 << 30)


NOT_A_FILE: Mapping[str, Spoil] = {
    "a pipe": _replaced(os.mkfifo),
    "a folder": _replaced(Path.mkdir),
    "a link to a device that never ends": _replaced(lambda file: file.symlink_to("/dev/zero")),
    "a link to itself": _replaced(lambda file: file.symlink_to(file.name)),
    "a link to nothing": _replaced(lambda file: file.symlink_to("nowhere")),
    "3 GiB of nothing": _replaced(_large),
}
NOT_AN_OBJECT: Mapping[str, Spoil] = {
    "empty": _content(b""),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-20]),
    "a list": _content(b"[1]"),
    "null": _content(b"null"),
    "a number": _content(b"17"),
    "bytes": _content(bytes(range(256))),
    "UTF-16": lambda file: file.write_bytes(file.read_text().encode("utf-16")),
    "lists without end": _content(b"[" * DEEP),
    "objects without end": _content(b'{"a":' * DEEP),
    "a number of a million digits": _content(b'{"model_type": ' + b"9" * 1_000_000 + b"}"),
    "NUL": _content(b"\0" * 100),
}
BAD: Mapping[str, Spoil] = {**NOT_A_FILE, **NOT_AN_OBJECT}


def tensors_of(file: Path) -> dict[str, Any]:
    """Return all tensors of a safetensors file."""
    from safetensors.torch import load_file

    found: dict[str, Any] = load_file(file)
    return found


def put_tensors(file: Path, tensors: Mapping[str, Any]) -> None:
    """Write them back."""
    from safetensors.torch import save_file

    save_file(dict(tensors), file, {"format": "pt"})


def of_tensors(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Change the tensors of a safetensors file in keys, or replace them by a dict that `change` returns."""

    def spoil(file: Path) -> None:
        tensors = tensors_of(file)
        changed = change(tensors)
        put_tensors(file, changed if isinstance(changed, dict) else tensors)

    return spoil


def of_header(change: Callable[[dict[str, Any]], object], *, length: int | None = None) -> Spoil:
    """Change the header of a safetensors file in keys, or replace it; `length` is what the file declares instead."""

    def spoil(file: Path) -> None:
        content = file.read_bytes()
        end = 8 + struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:end])
        changed = change(header)
        kept = changed if isinstance(changed, bytes) else json.dumps(header if changed is None else changed).encode()
        file.write_bytes(struct.pack("<Q", len(kept) if length is None else length) + kept + content[end:])

    return spoil

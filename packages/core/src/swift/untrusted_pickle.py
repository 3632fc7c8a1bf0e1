"""Reader of pickles in third-party checkpoints, with torch's restricted unpickler: tensors and plain containers only.

The unpickler prevents code from running, but not a small file from filling the memory. torch writes archives without
compression, so this module refuses compressed ones: nothing inside can be larger than the file.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from swift.untrusted import Failure, check_regular, shown

_PICKLE = 256 << 20
_DEPTH = 64


def load_pickle(path: Path, error: Failure) -> Any:
    """Return what `torch.save` wrote, whose tensors stay on the disk until they are looked at."""
    check_archive(path, error)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as cause:  # it raises what it likes about what it does not know
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        reason = lines[0]
        if isinstance(cause, pickle.UnpicklingError):  # torch's advice is to load it without protection
            reason = "it contains objects other than tensors, numbers and strings, which swift does not load."
        raise error(f"{shown(path)} cannot be read: {reason}") from None
    for tensor in _tensors(content, path, error):
        stored = tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else -1
        if tensor.numel() * tensor.element_size() > stored:
            raise error(f"{shown(path)} cannot be read: a tensor of shape {tuple(tensor.shape)} is not stored in it.")
    return content


def check_archive(path: Path, error: Failure) -> None:
    """Raise `error` unless this is an archive as `torch.save` writes it, no larger inside than outside."""
    check_regular(path, error)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            pickles = [entry for entry in entries if entry.filename.endswith(".pkl")]
            plain = [each for each in pickles if not each.compress_type and each.file_size <= _PICKLE]
            heads = [archive.read(each) for each in plain]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as cause:
        raise error(
            f"{shown(path)} cannot be read: it is not an archive as torch.save writes it ({cause}).",
            hint="Save it again with a torch of version 1.6 or newer.",
        ) from None
    size = path.stat().st_size
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or sum(e.file_size for e in entries) > size:
        raise error(f"{shown(path)} cannot be read: its contents are compressed, which torch.save never does.")
    if len(heads) != len(pickles) or any(b"bytearray" in head for head in heads):
        raise error(f"{shown(path)} cannot be read: it declares more data than it stores.")


def _tensors(content: Any, path: Path, error: Failure) -> Iterator[torch.Tensor]:
    """Yield all tensors in containers, each container once: one that is in itself would never end."""
    seen: set[int] = set()
    level = [content]
    for _ in range(_DEPTH):
        if not level:
            return
        inner: list[Any] = []
        for each in level:
            if isinstance(each, torch.Tensor):
                yield each
            elif isinstance(each, dict | list | tuple | set) and id(each) not in seen:
                seen.add(id(each))
                inner.extend(each.values() if isinstance(each, dict) else each)
        level = inner
    raise error(f"{shown(path)} cannot be read: it is nested more than {_DEPTH} levels deep.")

"""Atomic replacement of files, and the folder of caches."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: str | bytes, *, synced: bool = False) -> None:
    """Write a temporary file and rename it to `path`; `synced` survives a power failure too.

    A reader sees the old or the new file, never a part of it, however this process ends.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def user_cache() -> Path:
    """Return swift's folder in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "swift"

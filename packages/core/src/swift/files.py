"""Writing a file so that a reader sees the old or the new one, never half of it, whatever ends this process."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: str | bytes, *, synced: bool = False) -> None:
    """Write next to `path`, then rename onto it; `synced`: it is to outlast a loss of power too."""
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

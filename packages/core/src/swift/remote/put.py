"""Uploads of folders to a URL: the files that make a folder complete are written last, and removed first.

A run uploads in another process, to have no threads of file systems in its own: `python -m swift.remote.put` reads one
line of JSON from standard input, and prints errors in one line. It ends when standard input is closed, as then the
parent process is gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swift.errors import ExportError, SwiftError
from swift.remote.forked import forked
from swift.remote.urls import LOCAL, check_protocol, open_url, protocol_of, unreachable

MANIFEST = "manifest.json"
"""The manifest of a checkpoint. It has the hashes of its files, so that no two checkpoints have the same."""
COMPLETE = ("model.safetensors.index.json", "adapter_config.json", "config.json", MANIFEST)
"""Files that loading a folder needs, in the order in which they are written after all others."""


def put(folder: Path, url: str) -> None:
    """Copy a folder to a URL. Until it is complete, other programs cannot load it."""
    check_protocol(url, error=ExportError, hint="Pass a URL such as s3://BUCKET/FOLDER.")
    forked(_put, url, folder, error=ExportError)


def put_files(files: Sequence[Path], url: str) -> None:
    """Copy the files that still exist to a folder behind a URL, in this process."""
    system, base = open_url(url, error=ExportError)
    try:
        _make_room(url, system, base)
        for file in files:
            if file.exists():
                system.put_file(str(file), f"{base.rstrip('/')}/{file.name}")
    except Exception as problem:  # every file system raises what it likes
        raise unreachable(url, problem, error=ExportError, command="written") from None


def remove(url: str) -> None:
    """Remove a folder behind a URL, in this process; the files that make it complete go first."""
    system, base = open_url(url, error=ExportError)
    try:
        _unmark(system, base)
        if system.exists(base):
            system.rm(base, recursive=True)
    except Exception as problem:
        raise unreachable(url, problem, error=ExportError, command="removed") from None


def _put(url: str, folder: Path) -> str:
    system, base = open_url(url, error=ExportError)
    names = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
    names.sort(key=lambda name: COMPLETE.index(name) if name in COMPLETE else -1)
    try:
        _unmark(system, base)
        for name in names:
            target = f"{base.rstrip('/')}/{name}"
            _make_room(url, system, target.rpartition("/")[0])
            system.put_file(str(folder / name), target)
            system.invalidate_cache()
            size = system.info(target)["size"]
            if size != (folder / name).stat().st_size:
                raise OSError(f"{target} is incomplete: {size} of {(folder / name).stat().st_size} bytes")
    except Exception as problem:
        raise unreachable(url, problem, error=ExportError, command="written") from None
    return url


def _has_manifest(url: str, folder: Path) -> bool:
    """Return whether the copy there has the same manifest, which is written last."""
    if not (folder / MANIFEST).is_file():
        return False
    system, base = open_url(url, error=ExportError)
    try:
        return bool(system.cat_file(f"{base.rstrip('/')}/{MANIFEST}") == (folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        return False
    except Exception as problem:
        raise unreachable(url, problem, error=ExportError, command="written") from None


def _make_room(url: str, system: Any, folder: str) -> None:
    """Create a folder in file systems that have folders, unlike buckets."""
    if protocol_of(url) == LOCAL:
        system.makedirs(folder, exist_ok=True)


def _unmark(system: Any, base: str) -> None:
    """Remove the files that make a folder complete."""
    for name in reversed(COMPLETE):
        if system.exists(f"{base.rstrip('/')}/{name}"):
            system.rm_file(f"{base.rstrip('/')}/{name}")


def main() -> int:
    """Do the task on standard input: `{"folder": ..., "to": ..., "gone": [...], "files": [...], "files_to": ...}`."""
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        if task["folder"] is not None and not _has_manifest(task["to"], Path(task["folder"])):
            _put(task["to"], Path(task["folder"]))
        put_files([Path(each) for each in task["files"]], task["files_to"])
        for url in task["gone"]:
            remove(url)
    except SwiftError as error:
        sys.stderr.write(str(error).splitlines()[0] + "\n")
        return 1
    return 0


def _end_with_parent() -> None:
    """End this process when the parent, which holds the other end of standard input, has ended."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())

"""Folders of this machine, put behind a URL: what says that one is whole is written last, and goes first.

As a program it does what standard input asks for, so that a run needs no thread of a file system in its own process:
`python -m swift.remote.put` reads one line of JSON, and prints what went wrong in one line. When standard input is
closed, whoever asked is gone, and the program ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from swift.errors import ExportError, SwiftError
from swift.remote.apart import apart
from swift.remote.urls import LOCAL, check_protocol, open_url, protocol_of, unreachable

MANIFEST = "manifest.json"
"""What a checkpoint says of itself, its files' hashes included: no two have the same."""
WHOLE = ("model.safetensors.index.json", "adapter_config.json", "config.json", MANIFEST)
"""Files without which nothing loads a folder, in the order in which they are written after all others."""


def put(folder: Path, url: str, *, error: type[SwiftError] = ExportError) -> None:
    """Copy a folder to a URL. Whoever looks there meanwhile finds no whole one."""
    check_protocol(url, error=error, hint="Name a folder in a file system that fsspec knows: s3://BUCKET/FOLDER")
    apart(partial(_put, error=error), url, folder, error=error)


def put_now(folder: Path, url: str, *, error: type[SwiftError] = ExportError) -> None:
    """Do as `put` does, in this process; a checkpoint that is there already stays as it is."""
    if not _has_manifest(url, folder, error=error):
        _put(url, folder, error=error)


def put_files(files: Sequence[Path], url: str, *, error: type[SwiftError] = ExportError) -> None:
    """Copy single files to a folder behind a URL, in this process; those that are gone by now are left out."""
    system, base = open_url(url, error=error)
    try:
        _make_room(url, system, base)
        for file in files:
            if file.exists():
                system.put_file(str(file), f"{base.rstrip('/')}/{file.name}")
    except Exception as problem:  # every file system raises what it likes
        raise unreachable(url, problem, error=error, command="written") from None


def remove(url: str, *, error: type[SwiftError] = ExportError) -> None:
    """Remove a folder behind a URL, in this process: what says that it is whole first."""
    system, base = open_url(url, error=error)
    try:
        _unmark(system, base)
        if system.exists(base):
            system.rm(base, recursive=True)
    except Exception as problem:
        raise unreachable(url, problem, error=error, command="removed") from None


def _put(url: str, folder: Path, *, error: type[SwiftError]) -> str:
    system, base = open_url(url, error=error)
    names = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
    names.sort(key=lambda name: WHOLE.index(name) if name in WHOLE else -1)
    try:
        _unmark(system, base)
        for name in names:
            target = f"{base.rstrip('/')}/{name}"
            _make_room(url, system, target.rpartition("/")[0])
            system.put_file(str(folder / name), target)
            system.invalidate_cache()
            size = system.info(target)["size"]
            if size != (folder / name).stat().st_size:
                raise OSError(f"{target} arrived in part only, {size} bytes")
    except Exception as problem:
        raise unreachable(url, problem, error=error, command="written") from None
    return url


def _has_manifest(url: str, folder: Path, *, error: type[SwiftError]) -> bool:
    """Return whether what lies there has the same manifest, which is written last."""
    if not (folder / MANIFEST).is_file():
        return False
    system, base = open_url(url, error=error)
    try:
        return bool(system.cat_file(f"{base.rstrip('/')}/{MANIFEST}") == (folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        return False
    except Exception as problem:
        raise unreachable(url, problem, error=error, command="written") from None


def _make_room(url: str, system: Any, folder: str) -> None:
    """Make a folder, where there is such a thing: in a bucket there is none."""
    if protocol_of(url) == LOCAL:
        system.makedirs(folder, exist_ok=True)


def _unmark(system: Any, base: str) -> None:
    """Remove the files that say that a folder is whole."""
    for name in reversed(WHOLE):
        if system.exists(f"{base.rstrip('/')}/{name}"):
            system.rm_file(f"{base.rstrip('/')}/{name}")


def main() -> int:
    """Do the task on standard input: `{"folder": ..., "to": ..., "gone": [...], "files": [...], "beside": ...}`."""
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_other, daemon=True).start()
    try:
        if task["folder"] is not None:
            put_now(Path(task["folder"]), task["to"])
        put_files([Path(each) for each in task["files"]], task["beside"])
        for url in task["gone"]:
            remove(url)
    except SwiftError as error:
        sys.stderr.write(str(error).splitlines()[0] + "\n")
        return 1
    return 0


def _end_with_the_other() -> None:
    """End this process when the one that holds the other end of standard input has."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())

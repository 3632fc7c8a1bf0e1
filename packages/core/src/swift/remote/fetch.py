"""Local copies of the contents of URLs, made once, and again when the contents change."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash

from swift.errors import SwiftError
from swift.remote.forked import forked
from swift.remote.urls import check_protocol, open_url, unreachable
from swift.untrusted import shown

LOCK = ".fetch.lock"
"""The lock of a folder that copies are made in."""


def fetch(url: str, cache: Path, *, error: type[SwiftError], last: str = "", hint: str = "") -> Path:
    """Return the local copy of a file or folder, which is renewed when the contents of the URL have changed.

    `last` is the file of a folder that is copied after all others, and `hint` the hint where `cache` is full.
    """
    check_protocol(url, error=error, hint="Copy it to this machine and pass the local path.")
    work = partial(_copied, error=error, last=last, hint=hint)
    return Path(forked(work, url, cache, error=error))


def fetch_into(url: str, folder: Path, *, error: type[SwiftError], last: str = "") -> Path:
    """Copy the contents of a URL to a folder unless it exists, all or nothing; return the folder."""
    check_protocol(url, error=error, hint="Copy it to this machine and pass the local path.")
    return Path(forked(partial(_copied_into, error=error, last=last), url, folder, error=error))


def _copied(url: str, cache: Path, *, error: type[SwiftError], last: str, hint: str) -> str:
    system, path, files = _found(url, error=error, last=last)
    listed = xxhash.xxh3_128(url.encode())
    for name, about in files:
        listed.update(f"\0{name}\0{_state(system, about)}".encode())
    folder = cache / "remote" / listed.hexdigest()
    made = folder / PurePosixPath(path).name
    with _copying(url, folder, error=error, hint=hint), locked(folder):
        if not made.exists():
            _copy(system, files, made)
    return str(made)


def _copied_into(url: str, folder: Path, *, error: type[SwiftError], last: str) -> str:
    system, _path, files = _found(url, error=error, last=last)
    with _copying(url, folder, error=error), locked(folder.parent, LOCK):
        if not folder.exists():
            _copy(system, files, folder)
    return str(folder)


@contextmanager
def _copying(url: str, folder: Path, *, error: type[SwiftError], hint: str = "") -> Iterator[None]:
    """Raise the error about a copy to a folder that fails inside."""
    try:
        yield
    except OSError as problem:
        message = str(problem).strip()
        reason = problem.strerror or (message.splitlines()[0] if message else "")
        raise error(f"'{shown(url)}' cannot be copied to {folder}: {reason}.", hint=hint) from None
    except Exception as problem:  # every file system raises what it likes
        raise unreachable(url, problem, error=error) from None


def _found(url: str, *, error: type[SwiftError], last: str) -> tuple[Any, str, list[tuple[str, dict[str, Any]]]]:
    """Return the file system of a URL, the path in it, and the files there."""
    system, path = open_url(url, error=error)
    try:
        return system, path, _files(system, path, url, error=error, last=last)
    except SwiftError:
        raise
    except FileNotFoundError:
        raise error(f"'{shown(url)}' does not exist.", hint="Check the URL for spelling mistakes.") from None
    except Exception as problem:
        raise unreachable(url, problem, error=error) from None


def _files(system: Any, path: str, url: str, *, error: type[SwiftError], last: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the files of a folder by their names in it, with `last` at the end; a single file has the empty name."""
    about = system.info(path)
    if about["type"] == "file":
        return [("", about)]
    base = PurePosixPath(path.strip("/"))
    found = []
    for full, each in sorted(system.find(path, detail=True).items()):
        name = PurePosixPath(str(full).strip("/")).relative_to(base)
        if ".." in name.parts:
            raise error(f"'{shown(url)}' contains a file outside of it: '{shown(full)}'.")
        found.append((str(name), each))
    if not found:
        raise FileNotFoundError(url)
    return sorted(found, key=lambda file: file[0] == last)


def _state(system: Any, about: dict[str, Any]) -> str:
    """Return the metadata of a file that changes with it, where its file system has some."""
    kept = ("size", "ETag", "etag", "md5Hash", "blob_id", "mtime", "created", "LastModified", "last_modified")
    return str([(key, str(about[key])) for key in kept if key in about])


@contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Lock a folder against other processes of this machine."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _copy(system: Any, files: list[tuple[str, dict[str, Any]]], made: Path) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=".copy-", dir=made.parent))
    try:
        for name, about in files:
            target = temporary / made.name / name if name else temporary / made.name
            target.parent.mkdir(parents=True, exist_ok=True)
            system.get_file(about["name"], str(target))
            if target.stat().st_size != about["size"]:
                raise OSError(0, f"{about['name']} is incomplete: {target.stat().st_size} of {about['size']} bytes")
        (temporary / made.name).rename(made)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

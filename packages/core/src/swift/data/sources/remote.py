"""Data sets behind a URL that fsspec opens: copied to this machine once, and read from there."""

from __future__ import annotations

import gc
import multiprocessing
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import xxhash

from swift.data.sources.rows import first_line
from swift.data.store_index import INDEX_FILE
from swift.errors import DataError, SwiftError
from swift.untrusted import shown

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

PROTOCOLS = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "az": "adlfs", "abfs": "adlfs"}
"""Protocols of URLs, and the packages that fsspec needs for them."""
_IN_PROCESS = ("memory",)
"""Protocols of what only this process has."""
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)", re.DOTALL)


def is_remote(name: str) -> bool:
    """Return whether a data set's name is a URL."""
    return _URL.fullmatch(name) is not None


def fetch(url: str, cache: Path) -> Path:
    """Return the local copy of a file or folder, which is made anew when what the URL names has changed."""
    match = _URL.fullmatch(url)
    assert match is not None, url
    protocol = match[1]
    if protocol not in PROTOCOLS and protocol not in _IN_PROCESS:
        known = ", ".join(f"{each}://" for each in PROTOCOLS)
        raise DataError(
            f"'{shown(url)}' cannot be opened: {protocol}:// is not among {known}.",
            hint="Copy the data set to this machine, and name the file or folder.",
        )
    return Path(_apart(url, protocol, cache))


def _apart(url: str, protocol: str, cache: Path) -> str:
    """Copy in a process that is forked for it.

    File systems of fsspec leave threads behind, next to which neither can processes be forked safely nor the memory of
    a chat template be limited.
    """
    if protocol in _IN_PROCESS or "fork" not in multiprocessing.get_all_start_methods():
        return _copied(url, protocol, cache)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, url, protocol, cache))
    process.start()
    theirs.close()
    try:
        kind, *said = ours.recv()
    except EOFError:
        raise DataError(f"Copying '{shown(url)}' to this machine was ended by something else.") from None
    finally:
        process.join()
    if kind == "refused":
        raise DataError(said[0], hint=said[1])
    return str(said[0])


def _answer(connection: Connection, url: str, protocol: str, cache: Path) -> None:
    gc.freeze()  # garbage of the parent may have threads, which this process has not: taking it down would be an abort
    try:
        connection.send(("copied", _copied(url, protocol, cache)))
    except SwiftError as error:
        connection.send(("refused", error.args[0] if error.args else str(error), error.hint))


def _copied(url: str, protocol: str, cache: Path) -> str:
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url)
        files = _files(system, path, url)
    except SwiftError:
        raise
    except ImportError:
        raise DataError(
            f"'{shown(url)}' needs the package {PROTOCOLS[protocol]}.", hint=f"pip install {PROTOCOLS[protocol]}"
        ) from None
    except FileNotFoundError:
        raise DataError(
            f"There is nothing at '{shown(url)}'.", hint="Look for a spelling mistake in the URL."
        ) from None
    except Exception as error:  # every file system raises what it likes
        raise _unreachable(url, error) from None
    listed = xxhash.xxh3_128(url.encode())
    for name, about in files:
        listed.update(f"\0{name}\0{_state(system, about)}".encode())
    folder = cache / "remote" / listed.hexdigest()
    made = folder / PurePosixPath(path).name
    try:
        with _locked(folder):
            if not made.exists():
                _copy(system, files, folder, made)
    except OSError as error:
        raise DataError(
            f"'{shown(url)}' cannot be copied to {folder}: {error.strerror or first_line(error)}.",
            hint="Name another folder for copies: --data.cache FOLDER",
        ) from None
    except Exception as error:
        raise _unreachable(url, error) from None
    return str(made)


def _unreachable(url: str, error: Exception) -> DataError:
    return DataError(
        f"'{shown(url)}' cannot be read: {type(error).__name__}: {first_line(error)}",
        hint="Keys, regions and addresses are told to fsspec, by its configuration or by the environment.",
    )


def _files(system: Any, path: str, url: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the files of a folder by their names in it, an index last; a file by itself has the empty name."""
    about = system.info(path)
    if about["type"] == "file":
        return [("", about)]
    base = PurePosixPath(path.strip("/"))
    found = []
    for full, each in sorted(system.find(path, detail=True).items()):
        name = PurePosixPath(str(full).strip("/")).relative_to(base)
        if ".." in name.parts:
            raise DataError(f"'{shown(url)}' holds a file whose name leads out of it: '{shown(full)}'.")
        found.append((str(name), each))
    if not found:
        raise FileNotFoundError(url)
    return sorted(found, key=lambda file: file[0] == INDEX_FILE)


def _state(system: Any, about: dict[str, Any]) -> str:
    """Return what changes when a file does, as far as its file system says."""
    kept = ("size", "ETag", "etag", "md5Hash", "blob_id", "mtime", "created", "LastModified", "last_modified")
    return str([(key, str(about[key])) for key in kept if key in about])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process of this machine copy at a time."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _copy(system: Any, files: list[tuple[str, dict[str, Any]]], folder: Path, made: Path) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=".copy-", dir=folder))
    try:
        for name, about in files:
            target = temporary / made.name / name if name else temporary / made.name
            target.parent.mkdir(parents=True, exist_ok=True)
            system.get_file(about["name"], str(target))
            if target.stat().st_size != about["size"]:
                raise OSError(0, f"{about['name']} came in part only")
        (temporary / made.name).rename(made)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

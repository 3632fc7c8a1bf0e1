"""Safe reading of untrusted files: wrong types, endless files, and input that keeps a parser busy.

A downloaded folder may have anything under the names that swift reads. All such files are opened with this module:
only regular files, up to a plausible size, JSON up to a plausible depth, and file names inside files never lead out of
the folder. Every function raises the `error` of its caller (`ModelError`, `DataError`, ...), with file and position.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any, BinaryIO

from swift.errors import SwiftError

SMALL = 64 << 20
"""Maximum size of a settings file in bytes, twice that of the largest known tokenizer.json."""
DEPTH = 100
"""Maximum nesting of JSON from a file: tokenizers and JSON schemas of tools have about 20 levels."""
_NAME_BYTES = 255

Failure = type[SwiftError]


def open_regular(path: Path, error: Failure) -> BinaryIO:
    """Open a regular file for reading; raise `error` for pipes, devices, folders and unreadable files.

    Opening a pipe would wait for a writer, and a device such as /dev/zero never ends.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise error(f"There is no file {shown(path)}.") from None
    except (OSError, ValueError) as cause:  # ValueError: a NUL in the name
        raise error(f"{shown(path)} cannot be read: {_reason(cause)}.") from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise error(f"{shown(path)} cannot be read: it is {_kind(mode)}, not a file.")
    return os.fdopen(handle, "rb")


def typed_path(name: str, what: str, error: Failure) -> Path:
    """Return a typed path; raise `error` for an invalid one. `what` is the subject of the message."""
    # Manifests and other JSON files cannot contain a name that is not Unicode.
    check_unicode(name, what, error)
    parts = name.encode().split(b"/")
    if "\0" in name or sum(map(len, parts)) + len(parts) > 16 * _NAME_BYTES or max(map(len, parts)) > _NAME_BYTES:
        raise error(f"{what} {shown(name)!r} is not a valid path.")
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise error(f"{what} {shown(name)!r} names a home folder that does not exist.") from None


def is_file(path: Path) -> bool:
    """Return whether there is such a file; False, not an error, for a name that no file can have."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for such names


def check_regular(path: Path, error: Failure) -> None:
    """Raise `error` unless the path is a readable regular file, for readers that open files themselves."""
    open_regular(path, error).close()


def read_bytes(path: Path, error: Failure, *, limit: int = SMALL) -> bytes:
    """Return the content of a small file."""
    with open_regular(path, error) as file:
        try:
            content = file.read(limit + 1)
        except OSError as cause:
            raise error(f"{shown(path)} cannot be read: {_reason(cause)}.") from None
    if len(content) > limit:
        raise error(f"{shown(path)} is too large: more than {limit:,} bytes.")
    return content


def read_text(path: Path, error: Failure, *, limit: int = SMALL) -> str:
    """Return the text of a small UTF-8 file, without a byte order mark."""
    content = read_bytes(path, error, limit=limit)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise error(f"{shown(path)} is not UTF-8 text (byte {cause.start}).") from None


def read_json(path: Path, error: Failure, *, limit: int = SMALL) -> Any:
    """Return the value in a small JSON file."""
    return parse_json(read_text(path, error, limit=limit), str(path), error)


def read_json_object(path: Path, error: Failure, *, limit: int = SMALL) -> dict[str, Any]:
    """Return the object in a small JSON file; raise `error` for any other value."""
    content = read_json(path, error, limit=limit)
    if not isinstance(content, dict):
        raise error(f"{shown(path)} must contain a JSON object, not {json_kind(content)}.")
    return content


def parse_json(text: str | bytes, source: str, error: Failure, *, depth: int = DEPTH) -> Any:
    """Return the value of a JSON string; `source` names it in messages, as `file` or `file:line`."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as cause:
        line = f":{cause.lineno}" if cause.lineno > 1 else ""
        raise error(f"{source}{line}: malformed JSON: {cause.msg} (column {cause.colno}).") from None
    except UnicodeDecodeError as cause:
        raise error(f"{source}: not UTF-8 text (byte {cause.start}).") from None
    except RecursionError:
        raise error(f"{source}: the JSON is nested more than {depth} levels deep.") from None
    except ValueError:  # the interpreter's own limit on digits
        raise error(f"{source}: the JSON has a number with thousands of digits.") from None
    if is_deeper(value, depth):
        raise error(f"{source}: the JSON is nested more than {depth} levels deep.")
    return value


def is_deeper(value: object, depth: int) -> bool:
    """Return whether lists and mappings are nested more than `depth` levels deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        level = [
            item
            for parent in level
            for item in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(item, dict | list)
        ]
    return bool(level)


def json_kind(value: object) -> str:
    """Return the kind of a JSON value for messages: 'a list', 'null'."""
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), f"a {type(value).__name__}")


def inside(folder: Path, name: object, error: Failure, *, source: str) -> Path:
    """Return the path of a file that `source` names, which must be a plain name inside `folder`.

    A name that leaves the folder ('../x', '/etc/passwd', a symbolic link) would let an untrusted file choose what is
    opened on this machine. In a hub's cache every file is a link into the store of the same model, which is allowed.
    """
    if not isinstance(name, str) or not name or "\0" in name or not is_unicode(name) or len(name) > 16 * _NAME_BYTES:
        raise error(f"{source} must name a file in its folder, not {_clipped(repr(name))}.")
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name:
        raise error(
            f"{source} names {_clipped(repr(name))}, which leads out of {shown(folder)}.",
            hint="Do not use this folder: it tries to read other files of this machine.",
        )
    path = folder / pure
    try:
        real, home = path.resolve(), folder.resolve()
    except (OSError, RuntimeError) as cause:
        raise error(f"{shown(path)}, which {source} names, cannot be read: {_reason(cause)}.") from None
    if not any(real.is_relative_to(root) for root in (home, *_hub_store(home))):
        raise error(
            f"{source} names {_clipped(repr(name))}, a link to {real}, which leads out of {shown(folder)}.",
            hint="If you trust the link, copy the file into the folder.",
        )
    return path


def _hub_store(folder: Path) -> list[Path]:
    """Return the folder of the file contents of a hub's cache: `blobs`, next to `snapshots`."""
    for parent in folder.parents:
        if parent.name == "snapshots" and (parent.parent / "blobs").is_dir():
            return [parent.parent / "blobs"]
    return []


@contextmanager
def time_limit(
    seconds: float, error: SwiftError | Callable[[], SwiftError], *, watch: Callable[[], object] | None = None
) -> Iterator[None]:
    """Raise `error` in the body when it takes longer, for patterns and templates that may run forever.

    With `watch`, one limit covers many short tasks at no cost for each: every `seconds` it returns the current task
    (None for none), and a task that is current twice in a row has taken too long.

    It uses an alarm of the process, which only the main thread receives; other threads run the body without a limit.
    Python code, and C code that checks for signals as `re` does, is interrupted; other C code only when it returns.
    An alarm that is already set is delayed until the body has ended, or kept where it is due first.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    others, interval = signal.getitimer(signal.ITIMER_REAL)
    if 0.0 < others <= seconds:
        yield
        return
    seen: object = None

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal seen
        before, seen = seen, watch() if watch else None
        if watch and (seen is None or seen != before):
            return
        raise error() if callable(error) else error

    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, interrupt)
    # Repeatedly, because some code catches every exception and continues.
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if others:
            signal.setitimer(signal.ITIMER_REAL, max(others - (time.monotonic() - started), 0.001), interval)


@contextmanager
def memory_limit(extra: int) -> Iterator[None]:
    """Raise `MemoryError` in the body when the process allocates more than `extra` bytes in it.

    It uses the process's limit of address space, where the system has one, and no limit while other threads run, which
    it would affect too. The body should run Python code: other code may end the process.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    if soft != resource.RLIM_INFINITY and soft < taken + extra:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (taken + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def check_unicode(text: str, what: str, error: Failure) -> None:
    """Raise `error` for a string with an unpaired surrogate, which no file, terminal or tokenizer accepts."""
    if not is_unicode(text):
        raise error(f"{what} is not valid Unicode: {shown(text)}", hint="Write it in UTF-8.")


def is_unicode(text: str) -> bool:
    """Return whether a string can be encoded as UTF-8; one with an unpaired surrogate cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(what: Path | str, limit: int = 200) -> str:
    """Return a path or string for a message: long ones clipped, unprintable characters escaped."""
    text = _clipped(str(what), limit)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _clipped(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[: 3 * limit // 4]}…{text[5 - limit // 4 :]}"


def _reason(cause: BaseException) -> str:
    return getattr(cause, "strerror", None) or str(cause)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")

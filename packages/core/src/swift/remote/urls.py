"""URLs of file systems: the known protocols, the packages that they need, and how they are opened."""

from __future__ import annotations

import re
from typing import Any

from swift.errors import SwiftError
from swift.installation import pip_install
from swift.untrusted import shown

PROTOCOLS = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "az": "adlfs", "abfs": "adlfs"}
"""Protocols of URLs, and the packages that fsspec needs for them."""
LOCAL = "file"
"""The protocol of folders on this machine, mounted network file systems included."""
IN_PROCESS = "memory"
"""The protocol of files in this process's memory."""
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)", re.DOTALL)


def is_remote(name: str) -> bool:
    """Return whether a name is a URL."""
    return _URL.fullmatch(name) is not None


def protocol_of(url: str) -> str:
    """Return the protocol of a URL; the empty string for other names."""
    match = _URL.fullmatch(url)
    return "" if match is None else match[1]


def check_protocol(url: str, *, error: type[SwiftError], hint: str) -> None:
    """Refuse a URL of a protocol that is not known."""
    protocol = protocol_of(url)
    if not protocol:
        raise error(f"'{shown(url)}' is not a URL. For a folder on this machine, pass file:///FOLDER.", hint=hint)
    if protocol not in (*PROTOCOLS, LOCAL, IN_PROCESS):
        known = ", ".join(f"{each}://" for each in (*PROTOCOLS, LOCAL))
        raise error(f"Unknown protocol {protocol}:// in '{shown(url)}'. Known protocols: {known}.", hint=hint)


def open_url(url: str, *, error: type[SwiftError]) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url)
    except ImportError:
        package = PROTOCOLS[protocol_of(url)]
        raise error(f"'{shown(url)}' needs the package {package}.", hint=f"Run: {pip_install(package)}") from None
    except Exception as problem:  # every file system raises what it likes
        raise unreachable(url, problem, error=error) from None
    return system, str(path)


def unreachable(url: str, problem: Exception, *, error: type[SwiftError], command: str = "read") -> SwiftError:
    """Return the error about a URL whose file system raised something."""
    message = str(problem).strip()
    return error(
        f"'{shown(url)}' cannot be {command}: {type(problem).__name__}: {message.splitlines()[0] if message else ''}",
        hint="Set keys, regions and endpoints in the configuration of fsspec or in the environment.",
    )

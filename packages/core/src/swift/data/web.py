"""Images and sounds at addresses on the web: fetched once, into a folder, where the user turned that on."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import xxhash

from swift.data.conversation import Unusable

Web = Literal["no", "public", "any"]
"""What is fetched: nothing, from hosts that all of the web reaches, or from hosts of a private network as well."""
LARGEST_FILE = 256 * 2**20
_SECONDS = 30.0
_CHUNK = 1 << 20
_AGENT = "swift (fetches what a data set names)"


def is_address(name: str) -> bool:
    """Return whether the name of a file is an address on the web."""
    return name.startswith(("http://", "https://"))


def fetched(url: str, folder: Path, web: Web, what: str) -> str:
    """Return the path of the copy of what is at an address; it is made unless it is there.

    Raise `Unusable` where that is turned off or fails; `what` is what people call it.
    """
    reason = f"{what} on the web"
    if web == "no":
        raise Unusable(
            reason, f"{url} is not fetched: download it and name the file; training fetches it with --data.web public"
        )
    name = xxhash.xxh3_128_hexdigest(url.encode())
    path = folder / "web" / name[:2] / name
    if path.exists():
        return str(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        request = urllib.request.Request(url, headers={"User-Agent": _AGENT})
        with _opener(web).open(request, timeout=_SECONDS) as response, new_file(path) as file:
            size, announced = _copy(response, file), response.headers.get("Content-Length")
            if announced is not None and size != int(announced):
                raise OSError(f"{size} of {announced} bytes came")
    except (OSError, ValueError, http.client.HTTPException) as error:  # urllib's errors are of OSError's kin
        why = getattr(error, "reason", None) or error
        raise Unusable(reason, f"{url} cannot be fetched: {why}") from None
    return str(path)


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Give a file under a name of its own to write, which is renamed to `path` when it is whole."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            yield file
            file.flush()
            Path(file.name).rename(path)
        except BaseException:
            with suppress(OSError):
                Path(file.name).unlink()
            raise


def _copy(response: Any, file: IO[bytes]) -> int:
    size = 0
    while chunk := response.read(_CHUNK):
        size += len(chunk)
        if size > LARGEST_FILE:
            raise OSError(f"it is larger than {LARGEST_FILE >> 20} MiB")
        file.write(chunk)
    return size


class _NoFtp(urllib.request.FTPHandler):
    """Refuses FTP, to which urllib follows redirections, past the check of the host."""

    def ftp_open(self, req: urllib.request.Request) -> Any:
        raise urllib.error.URLError(f"it leads to {req.full_url}, and only http and https are fetched")


def _opener(web: Web) -> urllib.request.OpenerDirector:
    if web == "any":
        return urllib.request.build_opener(_NoFtp())
    # A proxy would reach for us what we may not: the peer must be the host itself, after every redirection.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoFtp(), _Public())


def _public_peer(*arguments: Any, **options: Any) -> socket.socket:
    """Connect, and hang up where the other side is no host of the public web; names may lead anywhere."""
    connected = socket.create_connection(*arguments, **options)
    address = ipaddress.ip_address(str(connected.getpeername()[0]).partition("%")[0])
    inner = getattr(address, "ipv4_mapped", None) or address
    if not inner.is_global or inner.is_multicast:
        connected.close()
        raise OSError(f"its host has the address {address} of a private network, which needs --data.web any")
    return connected


def _public(kind: Any, *arguments: Any, **options: Any) -> Any:
    """Return a connection of this kind to a host of the public web."""
    connection = kind(*arguments, **options)
    connection._create_connection = _public_peer
    return connection


class _Public(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens addresses of both kinds."""

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(partial(_public, http.client.HTTPConnection), request)

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(partial(_public, http.client.HTTPSConnection), request)

"""HTTP responses with a limit on their time and size, from the requested address alone.

The timeout of a socket does not limit a server that sends a byte now and then, or headers or lines without end.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPResponse, IncompleteRead
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar
from urllib.error import HTTPError

LARGEST = 512 << 20
"""Bytes of a response: the top log-probabilities of a long text take a tenth of it."""
LONGEST_LINE = 16 << 20
"""Bytes of one event of a stream."""
BROKEN = (OSError, HTTPException)
"""What a connection fails with; `urllib.error.URLError` is an OSError."""
_PART = 1 << 16
_END = object()
T = TypeVar("T")


class RequestRefused(Exception):
    """An HTTP error status of a server."""

    def __init__(self, error: HTTPError) -> None:
        super().__init__(f"{error.code} {error.reason}")
        self.code = error.code
        self.reason = str(error.reason)
        self.leads_to = error.headers.get("Location") if 300 <= error.code < 400 else None
        """Target of a redirect."""
        self.body = _beginning(error)


def read_response(opener: urllib.request.OpenerDirector, request: urllib.request.Request, seconds: float) -> bytes:
    """Return the body of a response within so many seconds; raise `RequestRefused` or one of `BROKEN`."""

    def read() -> Iterator[bytes]:
        with _opened(opener, request, seconds) as response:
            parts, size = [], 0
            while part := response.read(_PART):
                parts.append(part)
                size += len(part)
                if size > LARGEST:
                    raise OSError(f"its response has more than {LARGEST >> 20} MiB")
            if response.length:
                raise IncompleteRead(b"".join(parts), response.length)
        yield b"".join(parts)

    return next(with_timeout(read, seconds))


def response_lines(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, seconds: float
) -> Iterator[bytes]:
    """Yield an empty line when the response begins, then its lines; raise as `read_response` does."""
    with _opened(opener, request, seconds) as response:
        yield b""
        while line := response.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise OSError(f"its response has a line of more than {LONGEST_LINE >> 20} MiB")
            yield line


def with_timeout(make: Callable[[], Iterator[T]], seconds: float) -> Iterator[T]:
    """Run an iterator in a thread and yield its items; raise `TimeoutError` if one takes longer than `seconds`.

    The thread makes an item on request, and ends with the process.
    """
    wanted: SimpleQueue[bool] = SimpleQueue()
    came: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def work() -> None:
        iterator = make()
        while wanted.get():
            try:
                came.put((next(iterator, _END), None))
            except BaseException as failure:
                came.put((_END, failure))
        iterator.close()  # type: ignore[attr-defined]  # a generator

    Thread(target=work, daemon=True).start()
    try:
        while True:
            wanted.put(True)
            try:
                item, failure = came.get(timeout=seconds)
            except Empty:
                raise TimeoutError(f"it has not responded for {seconds:g} s") from None
            if failure is not None:
                raise failure
            if item is _END:
                return
            yield item
    finally:
        wanted.put(False)


def opener_without_redirects(*handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """Return an opener that follows no redirects: requests contain API keys and users' data."""
    return urllib.request.build_opener(_NoRedirects(), *handlers)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def http_error_302(self, *_: Any) -> None:
        """Return nothing, so that urllib raises an `HTTPError`."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302  # type: ignore[assignment]


def _opened(opener: urllib.request.OpenerDirector, request: urllib.request.Request, seconds: float) -> HTTPResponse:
    try:
        response: HTTPResponse = opener.open(request, timeout=seconds)
    except HTTPError as error:
        raise RequestRefused(error) from None
    return response


def _beginning(error: HTTPError) -> bytes:
    try:
        return error.read(_PART)
    except BROKEN:
        return b""

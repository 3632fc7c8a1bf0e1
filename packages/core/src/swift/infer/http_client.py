"""Answers of servers, each of which comes to an end: in its time, in its size, and at the address that was asked.

A server may send a byte now and then, headers without end, or lines that never do; a time between two bytes bounds
none of these.
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
"""Bytes of an answer: the likeliest tokens of a long text take a tenth of it."""
LONGEST_LINE = 16 << 20
"""Bytes of one event of a stream."""
BROKEN = (OSError, HTTPException)
"""What a connection fails with; `urllib.error.URLError` is an OSError."""
_PART = 1 << 16
_END = object()
T = TypeVar("T")


class RequestRefused(Exception):
    """An answer of a server that does not do what was asked."""

    def __init__(self, error: HTTPError) -> None:
        super().__init__(f"{error.code} {error.reason}")
        self.code = error.code
        self.reason = str(error.reason)
        self.leads_to = error.headers.get("Location") if 300 <= error.code < 400 else None
        """Where the server would have the request sent instead."""
        self.body = _beginning(error)


def read_response(opener: urllib.request.OpenerDirector, request: urllib.request.Request, seconds: float) -> bytes:
    """Return an answer that has so many seconds to come; raises `RequestRefused`, or what is in `BROKEN`."""

    def read() -> Iterator[bytes]:
        with _opened(opener, request, seconds) as answer:
            parts, size = [], 0
            while part := answer.read(_PART):
                parts.append(part)
                size += len(part)
                if size > LARGEST:
                    raise OSError(f"its answer has more than {LARGEST >> 20} MiB")
            if answer.length:
                raise IncompleteRead(b"".join(parts), answer.length)
        yield b"".join(parts)

    return next(with_timeout(read, seconds))


def response_lines(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, seconds: float
) -> Iterator[bytes]:
    """Yield an empty line when the answer begins, then its lines as they come; raises as `read_response` does."""
    with _opened(opener, request, seconds) as answer:
        yield b""
        while line := answer.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise OSError(f"its answer has a line of more than {LONGEST_LINE >> 20} MiB")
            yield line


def with_timeout(make: Callable[[], Iterator[T]], seconds: float) -> Iterator[T]:
    """Yield what an iterator yields, in a thread of its own; `TimeoutError` where one item takes longer than that.

    The thread makes an item when it is asked for, and ends with the process.
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
                raise TimeoutError(f"it has not answered for {seconds:g} s") from None
            if failure is not None:
                raise failure
            if item is _END:
                return
            yield item
    finally:
        wanted.put(False)


def opener_without_redirects(*handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """Return what opens addresses and follows no server elsewhere: requests carry keys and what users wrote."""
    return urllib.request.build_opener(_StayHere(), *handlers)


class _StayHere(urllib.request.HTTPRedirectHandler):
    def http_error_302(self, *_: Any) -> None:
        """Leave the answer to those who make an error of it."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302  # type: ignore[assignment]


def _opened(opener: urllib.request.OpenerDirector, request: urllib.request.Request, seconds: float) -> HTTPResponse:
    try:
        answer: HTTPResponse = opener.open(request, timeout=seconds)
    except HTTPError as error:
        raise RequestRefused(error) from None
    return answer


def _beginning(error: HTTPError) -> bytes:
    try:
        return error.read(_PART)
    except BROKEN:
        return b""

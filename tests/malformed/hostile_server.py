"""A server that responds with whatever bytes a case gives it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from time import sleep  # by itself: tests replace `time.sleep`

Reply = bytes | Callable[[], Iterator[bytes]]
"""What is sent before the connection is closed; an iterator may have no end."""


def reply(body: object, status: str = "200 OK", *more: str, length: object = None) -> bytes:
    """Return a response with this body: bytes, or what becomes JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(content) if length is None else length}", *more]
    return "\r\n".join([*head, "Connection: close", "", ""]).encode() + content


def stream(*events: object, end: bytes = b"data: [DONE]\n\n") -> bytes:
    """Return server-sent events."""
    lines = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    return head + b"".join(b"data: " + each + b"\n\n" for each in lines) + end


def without_end(first: bytes, again: bytes, seconds: float = 0.0) -> Callable[[], Iterator[bytes]]:
    """Return the same once and again, until the client is gone."""

    def send() -> Iterator[bytes]:
        yield first
        while True:
            yield again
            sleep(seconds)

    return send


@contextmanager
def hostile_server(replies: dict[str, Reply]) -> Iterator[str]:
    """Yield the address of a server that responds by the beginnings of paths."""
    listening = socket.create_server(("127.0.0.1", 0))

    def respond(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as request, suppress(OSError):
            path = request.readline().split()[1].decode()
            length = 0
            while (line := request.readline().strip()) != b"":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            request.read(length)
            sent = next((each for start, each in replies.items() if path.startswith(start)), reply({}, "404 None"))
            for part in (sent,) if isinstance(sent, bytes) else sent():
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)  # or unread bytes would make the system drop what was sent
            request.read()

    def serve() -> None:
        with suppress(OSError):  # closed
            while True:
                Thread(target=respond, args=(listening.accept()[0],), daemon=True).start()

    Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()

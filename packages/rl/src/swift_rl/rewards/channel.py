"""Messages between the run and a process that computes rewards: JSON, with its length before it."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")


def send(channel: socket.socket, message: Any) -> None:
    """Send one message."""
    data = json.dumps(message, default=str).encode()
    channel.sendall(_LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket) -> Any | None:
    """Return the next message; None where the other side is gone, or says no JSON."""
    head = _exactly(channel, _LENGTH.size)
    data = None if head is None else _exactly(channel, _LENGTH.unpack(head)[0])
    try:
        return None if data is None else json.loads(data)
    except (ValueError, RecursionError):  # somebody else wrote into the channel
        return None


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    parts = []
    while count:
        try:
            part = channel.recv(min(count, 1 << 20))
        except OSError:
            return None
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)

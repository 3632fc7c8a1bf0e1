"""Server-sent events with new lines of a run, which continue after a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from swift_ui.looking.lines import MOST_POINTS, RunLines
from swift_ui.looking.state import RunState, StateReader
from swift_ui.looking.view import as_json

EVERY = 0.25
"""Seconds between two reads of a file."""
STATE_EVERY = 4
"""Reads of the file for each check of the run's process."""
HEARTBEAT = 60
"""Reads after which a comment is sent, so that a broken connection is noticed."""


class RunEvents:
    """Events of one client: `lines` (new lines), `state` (it changed), `reset` (read everything again).

    The id of an event has the file and the offset up to which the client knows its lines.
    """

    def __init__(self, folder: Path, states: StateReader, known: str | None) -> None:
        self._folder, self._states = folder, states
        self._lines = RunLines(folder)
        self._known = known

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"retry: 1000\n\n"
        for event in await asyncio.to_thread(self._begin):
            yield event
        sent: RunState | None = None
        look = 0
        while True:
            if look % STATE_EVERY == 0:
                state = await asyncio.to_thread(self._states.state, self._folder)
                # The newest step and its time are in `lines` events.
                known = replace(state, step=0, total_steps=0, updated=0.0, host="")
                if known != sent:
                    sent = known
                    yield self._event("state", state.as_json())
            for event in await asyncio.to_thread(self._new):
                yield event
            if look % HEARTBEAT == 0:
                yield b": here\n\n"
            look += 1
            await asyncio.sleep(EVERY)

    def _begin(self) -> list[bytes]:
        """Return the events that a client missed; `reset` if its id is from another file."""
        if self._known is None:
            self._lines.skip()
            return []
        if not self._lines.resume(self._known):
            self._lines.skip()
            return [self._event("reset", {})]
        return self._new()

    def _new(self) -> list[bytes]:
        generation = self._lines.generation
        lines = self._lines.update()
        if generation and self._lines.generation != generation:
            return [self._event("reset", {})]
        rows = [line for line in lines if "step" in line]
        return [self._event("lines", {"lines": rows[-MOST_POINTS:]})] if rows else []

    def _event(self, name: str, data: dict[str, Any]) -> bytes:
        return f"event: {name}\nid: {self._lines.position}\n".encode() + b"data: " + as_json(data) + b"\n\n"

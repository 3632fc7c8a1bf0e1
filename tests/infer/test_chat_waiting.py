"""What a terminal shows between a question of `swift chat` and the first word of its answer."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from screen import Screen, on_a_terminal

from swift.contracts import Sampling
from swift_infer.chat import converse


class SlowSpeaker:
    """Answers in two pieces, the first once the terminal says that it is being waited for."""

    name = "slow"
    multi_turn = True

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def respond(self, questions: Sequence[Any], sampling: Sampling) -> Iterator[Any]:
        raise NotImplementedError

    def stream(self, messages: Sequence[Any], sampling: Sampling) -> Iterator[str]:
        assert self._screen.wait_for("Waiting for slow ...")
        yield "Good "
        yield "day."

    def close(self) -> None:
        """There is nothing to close."""


def test_chat_shows_waiting_and_leaves_only_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chat shows that it waits for the first token, and leaves only the response."""
    with on_a_terminal(monkeypatch) as screen:
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
        converse(SlowSpeaker(screen), Sampling(8, 0.0, 1.0, 0))
    assert [line for line in screen.lines if line] == ["Good day."]

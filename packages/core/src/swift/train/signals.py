"""SIGTERM and Ctrl-C: finish the step, save, and say how to resume. A second one ends at once."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Handler = Callable[[int, FrameType | None], object] | int | None

GRACEFUL = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Handler] = {number: signal.signal(number, handler) for number in GRACEFUL}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def graceful_stop() -> Iterator[list[int]]:
    """In the process that trains: the list gets the number of the first signal; the loop looks at it between steps."""
    received: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        if received:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        received.append(number)

    with _handling(on_signal):
        yield received


@contextmanager
def forwarded_signals() -> Iterator[list[int]]:
    """In the launcher: pass signals on to the workers and let them end by themselves, instead of killing them."""
    received: list[int] = []
    # The elastic launcher would install handlers that end the workers at once.
    before = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE")
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGHUP,SIGQUIT"

    def on_signal(number: int, _: FrameType | None) -> None:
        received.append(number)
        for child in _children():
            with_signal = signal.SIGTERM if number == signal.SIGTERM else signal.SIGINT
            try:
                os.kill(child, with_signal)
            except ProcessLookupError:
                continue

    try:
        with _handling(on_signal):
            yield received
    finally:
        if before is None:
            os.environ.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)
        else:
            os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = before


def _children() -> list[int]:
    """Workers started by this process."""
    import psutil

    return [child.pid for child in psutil.Process().children(recursive=False)]

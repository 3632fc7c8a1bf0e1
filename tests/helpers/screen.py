"""A small terminal: what is written to a pseudo-terminal, as a person would see it and scroll back to it."""

from __future__ import annotations

import os
import pty
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_CODE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)|\x1b.")


def shown(written: str) -> list[str]:
    """Return the lines that stand on a terminal, from the first on, once this has been written to it."""
    rows, row, column = [""], 0, 0
    for private, numbers, code, move, text in _CODE.findall(written):
        if text:
            rows[row] = rows[row][:column].ljust(column) + text + rows[row][column + len(text) :]
            column += len(text)
        elif move == "\r":
            column = 0
        elif move == "\n":
            row, column = row + 1, 0
            rows += [""] * (row == len(rows))
        elif code == "A":
            row = max(0, row - int(numbers or 1))
        elif code == "K" and not private:
            rows[row] = rows[row][:column] if numbers in ("", "0") else ""
    return rows


class Screen:
    """Lines of text that control codes move over. Lines longer than the terminal are not wrapped."""

    def __init__(self) -> None:
        self.raw = ""
        self._master, self.slave = pty.openpty()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def lines(self) -> list[str]:
        """What stands there, from the first line on."""
        return shown(self.raw)

    def wait_for(self, text: str) -> bool:
        """Whether the text is written at some time."""
        for _ in range(500):
            if text in self.raw:
                return True
            time.sleep(0.02)
        return False

    def close(self) -> None:
        """Read what is left."""
        os.close(self.slave)
        self._reader.join()
        os.close(self._master)

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._master, 65536)
            except OSError:  # nobody writes any more
                return
            self.raw += piece.decode()


@contextmanager
def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> Iterator[Screen]:
    """Let this process's standard output and error be a terminal; its screen is complete once the block has ended."""
    screen = Screen()
    with monkeypatch.context() as patched, os.fdopen(os.dup(screen.slave), "w") as output:
        patched.setattr(sys, "stdout", output)
        patched.setattr(sys, "stderr", output)
        patched.setenv("TERM", "xterm")
        patched.setenv("COLUMNS", str(columns))
        patched.delenv("CI", raising=False)
        yield screen
    screen.close()

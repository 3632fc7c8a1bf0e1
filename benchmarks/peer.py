"""Processes that take turns step by step: the end that gives turns, and the end that waits for them."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Peer:
    """A module of the benchmarks in a process of its own, which waits for its turn before every step.

    It gets the name of a file with its order, which holds a `folder` of its own, as its last argument.
    """

    def __init__(
        self,
        module: str,
        order: Mapping[str, Any],
        *,
        python: str = sys.executable,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="swift-benchmarks-")
        place = Path(self._folder.name)
        (place / "order.json").write_text(json.dumps({**order, "folder": self._folder.name}))
        self._errors = place / "errors.txt"
        command = [python, "-m", module, str(place / "order.json")]
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **(variables or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )
        self._ready = False
        atexit.register(self.close)

    def wait(self) -> None:
        """Return once it is ready for its first step."""
        if not self._ready:
            self._read()
            self._ready = True

    def step(self) -> dict[str, Any]:
        """Let it make its next step; returns what it says of it."""
        self.wait()
        assert self._process.stdin
        self._process.stdin.write("go\n")
        return self._read()

    def close(self) -> None:
        """End it, and take its folder away."""
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("\n".join(self._errors.read_text().splitlines()[-15:]))
        said: dict[str, Any] = json.loads(line)
        return said


class Turn:
    """A peer's end of the line: says what a step was, and waits for the next turn."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # whatever a library prints goes to the errors

    def end(self, said: Mapping[str, Any]) -> None:
        """Return when the next turn begins; the last one ends the process."""
        self._out.write(json.dumps(said) + "\n")
        if not sys.stdin.readline():
            sys.exit()

"""`swift serve` as a user starts it, and what a user reads on the terminal."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from commands import SWIFT, Run, started
from imported import interpreter

from swift_testing.crew import free_port

ENVIRONMENT = {"VLLM_PLUGINS": "", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
ENGINE_WORKS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Spares vLLM on a CPU the worker's process next to the engine's, which imports all of vLLM once more."""
READY = "Ctrl-C stops it"


@dataclass
class Served:
    """A server that answers."""

    run: Run
    key: str | None = None
    folders: dict[str, Path] = field(default_factory=dict)
    """What it serves and could serve, by name."""

    @property
    def url(self) -> str:
        """With /v1."""
        found = re.search(r"Serving .* at (\S+)", self.run.output)
        assert found
        return found[1]

    @property
    def curl_line(self) -> str:
        """As it is printed."""
        found = re.search(r"From a shell:\n  (curl .*)\n", self.run.output)
        assert found
        return found[1]

    @property
    def python_lines(self) -> str:
        """As they are printed."""
        found = re.search(rf"From Python.*:\n(.*)\n\n{READY}", self.run.output, re.DOTALL)
        assert found
        return textwrap.dedent(found[1])

    def processes(self) -> list[psutil.Process]:
        """Swift's own, and all that it started."""
        own = psutil.Process(self.run.process.pid)
        return [own, *own.children(recursive=True)]


@contextmanager
def serving(
    folder: Path, *words: str, environment: Mapping[str, str] | None = None, by_itself: bool = False
) -> Iterator[Run]:
    """`swift serve WORDS`, typed in `folder`; nothing of it is left in the end.

    With `by_itself` vLLM is started as users have it: by an interpreter that has to import it first.
    """
    changed = {**ENVIRONMENT, **ENGINE_WORKS, **(environment or {})}
    python = [] if by_itself else ["--python", str(interpreter())]
    with started([*SWIFT, "serve", *words, *python, "--port", str(free_port())], folder, changed) as run:
        try:
            yield run
        finally:
            left = [] if run.process.poll() is not None else psutil.Process(run.process.pid).children(recursive=True)
            run.process.kill()
            assert all_gone(left), f"still there: {left}\n{run.output}"


def all_gone(processes: Sequence[psutil.Process], within: float = 60) -> bool:
    """Wait until they are; False when some are not. One that is only waiting to be collected is gone."""
    end = time.monotonic() + within
    while any(map(_lives, processes)):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

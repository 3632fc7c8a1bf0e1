"""Object stores and clusters for real, on this machine: `make clusters`, which installs them in an environment.

Nothing here is collected by other commands: starting a cluster takes as long as a hundred tests.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from commands import Run, started

if "SWIFT_CLUSTERS" not in os.environ:
    collect_ignore_glob = ["test_*.py"]

PLACE = Path(sys.prefix) / "clusters" / "bin"
"""Programs of an environment that has all of this one, and Ray, Dask, and object stores with their clients."""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and conversations beside it."""
    from swift_testing.subjects import conversations, write_jsonl, write_model

    folder = tmp_path_factory.mktemp("models")
    write_jsonl(folder / "data.jsonl", conversations(16))
    return write_model(folder / "tiny")


@pytest.fixture
def ports() -> list[int]:
    """Ports that nothing listens at."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(8)]
    try:
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start a program of the environment in a folder; it is ended, with all its processes, after the test."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def begin(program: str, *words: str, folder: Path = tmp_path, **variables: str) -> Run:
            folder.mkdir(exist_ok=True)
            path = f"{PLACE}:{PLACE.parent.parent / 'bin'}:{os.environ['PATH']}"
            own = PLACE / program
            command: Sequence[str] = [str(own) if own.exists() else program, *words]
            return stack.enter_context(started(command, folder, {"PATH": path, **variables}))

        yield begin

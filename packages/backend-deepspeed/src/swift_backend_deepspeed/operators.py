"""Operators that DeepSpeed builds in C++ at their first use: built once, in a cache of swift's, and not silently."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swift.contracts import Run
from swift.files import user_cache

VARIABLE = "TORCH_EXTENSIONS_DIR"


def build_operator(run: Run, name: str, builder: Callable[[], Any]) -> None:
    """Build and load an operator; one process of a machine builds, the others wait for it and load."""
    cache = cache_folder()
    with building(cache, name, run.say) as fresh:
        os.environ.setdefault(VARIABLE, str(cache))
        begin = time.monotonic()
        if fresh:
            run.say(f"Building DeepSpeed's {name} in {cache}: this happens once, and takes minutes.")
        builder().load(verbose=False)
        if fresh:
            run.say(f"Built {name} in {time.monotonic() - begin:.0f} s.")


def cache_folder() -> Path:
    """Return where operators are kept; `TORCH_EXTENSIONS_DIR` decides, as everywhere."""
    return Path(os.environ.get(VARIABLE) or user_cache() / "operators")


@contextmanager
def building(cache: Path, name: str, say: Callable[[str], None]) -> Iterator[bool]:
    """Alone on this machine with an operator; tells whether it is yet to be built.

    torch locks a build with a file, for which later runs wait silently, for ever if the build was killed. The lock
    that is held here goes with its process: whoever has it knows that no build is going on.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.swift-lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another process builds {name}; this one waits for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in cache.rglob(f"{name}/lock"):
            say(f"A build of {name} was killed: its lock {stale} is removed.")
            stale.unlink()
        yield not any(cache.rglob(f"{name}/{name}*.so"))

"""Work with file systems in a process of its own.

File systems of fsspec leave threads behind, next to which neither can processes be forked safely nor the memory of a
chat template be limited.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from swift.errors import SwiftError
from swift.remote.urls import IN_PROCESS, protocol_of
from swift.untrusted import shown

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def apart(work: Callable[..., str], url: str, *arguments: Any, error: type[SwiftError]) -> str:
    """Return what `work(url, *arguments)` returns in a process that is forked for it."""
    if protocol_of(url) == IN_PROCESS or "fork" not in multiprocessing.get_all_start_methods():
        return work(url, *arguments)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(theirs, work, url, *arguments))
    process.start()
    theirs.close()
    try:
        kind, *details = ours.recv()
    except EOFError:
        raise error(f"Copying '{shown(url)}' was killed.") from None
    finally:
        process.join()
    if kind == "refused":
        raise error(details[0], hint=details[1])
    return str(details[0])


def _run(connection: Connection, work: Callable[..., str], url: str, *arguments: Any) -> None:
    gc.freeze()  # garbage of the parent may have threads, which this process has not: taking it down would be an abort
    try:
        connection.send(("done", work(url, *arguments)))
    except SwiftError as error:
        connection.send(("refused", error.args[0] if error.args else str(error), error.hint))

"""Run work with fsspec file systems in a forked process.

These file systems leave threads behind. With threads, this process could neither fork safely nor limit the memory of
a chat template.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from swift.errors import SwiftError
from swift.remote.urls import IN_PROCESS, protocol_of
from swift.untrusted import shown


def forked(work: Callable[..., str], url: str, *arguments: Any, error: type[SwiftError]) -> str:
    """Call `work(url, *arguments)` in a forked process and return its return value."""
    if protocol_of(url) == IN_PROCESS or "fork" not in multiprocessing.get_all_start_methods():
        return work(url, *arguments)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(theirs, work, url, *arguments))
    process.start()
    theirs.close()
    try:
        kind, *values = ours.recv()
    except EOFError:
        raise error(
            f"The process that copies '{shown(url)}' was killed.", hint="It may have run out of memory; try again."
        ) from None
    finally:
        process.join()
    if kind == "refused":
        raise error(values[0], hint=values[1])
    return str(values[0])


def _report(connection: Connection, work: Callable[..., str], url: str, *arguments: Any) -> None:
    gc.freeze()  # the parent's garbage may own threads, which this process lacks: collecting it would abort
    try:
        connection.send(("done", work(url, *arguments)))
    except SwiftError as error:
        connection.send(("refused", error.args[0] if error.args else str(error), error.hint))

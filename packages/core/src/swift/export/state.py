"""Export of a stream of weights, by the processes of a run or by one alone."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path

from swift.checkpoint.coordination import agree, comms_for, write_failure
from swift.contracts import WeightStream
from swift.errors import ExportError, SwiftError
from swift.export.destination import check_destination
from swift.export.in_place import put_in_place
from swift.export.job import ExportJob
from swift.export.verified import write_and_verify
from swift.plugins.blame import blamed


def export_state(job: ExportJob, weights: WeightStream, *, is_main: bool) -> None:
    """Export a stream of weights. Called on every process of a run, since the stream may use collectives.

    The destination appears when it is complete and verified, or not at all.
    """
    _on_main(lambda: _export(job, weights), weights, job.destination, is_main=is_main)


def _export(job: ExportJob, weights: WeightStream) -> None:
    check_destination(job.destination, job.options)
    try:
        shutil.rmtree(job.temporary, ignore_errors=True)
        job.temporary.mkdir(parents=True)
        write_and_verify(job, weights)
        put_in_place(job.temporary, job.destination)
    finally:
        shutil.rmtree(job.temporary, ignore_errors=True)
    if not job.intermediate:
        job.say(f"Exported ({job.to}) to {job.destination}")


def _on_main(work: Callable[[], None], weights: WeightStream, folder: Path, *, is_main: bool) -> None:
    """Do `work` on the main process; every process reads the stream to its end, and all fail together."""
    failure: SwiftError | None = None
    try:
        if is_main:
            work()
    except SwiftError as error:
        failure = error
    except OSError as error:
        message, hint = write_failure("The export", folder, error)
        failure = ExportError(message, hint=hint and hint.replace("--output_dir", "--out"))
        failure.__cause__ = error
        if blamed(error) is not None:
            failure.traceback_of = error
    # After a failure too: the other processes may be inside the stream's collectives.
    deque(weights, maxlen=0)
    agree(comms_for("checkpoint"), failure)

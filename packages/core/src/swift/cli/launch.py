"""From a command to processes: join the group of a launcher, or start torch's elastic launcher in this process.

`swift.processes.group` reads this process's rank from the environment, `workers` starts processes, and `reports` shows
the error of one of them to the user.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

from swift.contracts import RunSummary
from swift.parsing import Parsed
from swift.processes.group import (
    alone_in_slurm,
    check_port,
    check_port_is_free,
    current_world,
    find_group,
    join,
)
from swift.processes.reports import leave_note_of_stop, reported_errors
from swift.processes.signals import Stopped, follow_launcher, is_worker, prompt_stop, say_stopped
from swift.terminal import IMPORTS, waiting


def launch(parsed: Parsed, argv: list[str]) -> int:
    """Run a training; return the exit code of the command."""
    try:
        with reported_errors(), prompt_stop():
            return _launch(parsed, argv)
    except Stopped as stopped:
        say_stopped(stopped.number)
        if current_world().size > 1:
            # Threads of a process group that lost its peers would keep the interpreter alive after a return.
            sys.stdout.flush()
            os._exit(128 + stopped.number)
        return 128 + stopped.number


def _launch(parsed: Parsed, argv: list[str]) -> int:
    if is_worker():
        follow_launcher()
    group = find_group(parsed.environment, parsed.nproc)
    if group.size == 1 and (note := alone_in_slurm(os.environ, group.processes)):
        sys.stderr.write(f"Note: {note}\n")
    if group.processes > 1:
        if group.size > 1 and group.rank == 0:
            check_port_is_free(group.port)
        with waiting("Importing torch"):
            from swift.processes.workers import run_workers
        _resume_garbage_collection()
        return run_workers(group, argv)
    if group.size > 1:
        join(group, os.environ)
    check_port(os.environ)
    with waiting(IMPORTS):
        from swift.models.quiet import quiet_libraries

        quiet_libraries()  # first: the libraries print while they are imported
        from swift.train.loop import train
    _resume_garbage_collection()
    return exit_code(train(parsed))


def _resume_garbage_collection() -> None:
    """Resume what `main` has paused for the imports, and exempt the imported modules, which are never garbage."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def exit_code(summary: RunSummary) -> int:
    """Return 0 for a completed run, or 128 + signal number for one that a signal stopped, so that `&&` stops.

    Another process of the group may have received the signal. A worker always returns 0, because its launcher would
    report a crash otherwise, and leaves a note.
    """
    if summary.status != "stopped":
        return 0
    number = summary.signal or signal.SIGTERM
    if is_worker():
        leave_note_of_stop(number)
        return 0
    return 128 + number

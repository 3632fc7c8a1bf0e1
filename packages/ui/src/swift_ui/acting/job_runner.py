"""Runner of one command: starts it, waits for it, and records its end. It outlives the server.

`python -m swift_ui.acting.job_runner FOLDER` returns immediately. It imports only the standard library, because it
stays in memory as long as the command.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

JOB, STARTED, ENDED, LOG = "job.json", "started.json", "ended.json", "log.txt"
_LOOK = 0.2
"""Seconds between two looks for the folder of the run."""


def run_job(folder: Path) -> None:
    """Run the command of a folder to its end."""
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    run_folder = Path(job["run_folder"]) if job["run_folder"] else None
    log = folder / LOG
    if run_folder is not None:
        share_log(run_folder / LOG, log)  # of a resumed run
    killed = out_of_memory_kills()
    with log.open("ab") as output:
        begins = output.tell()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **job["environment"]}
        child = subprocess.Popen(
            job["program"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=job["cwd"],
            start_new_session=True,
        )
        own = {"runner": os.getpid(), "runner_began": began(os.getpid()), "log_from": begins}
        write(folder / STARTED, {"process": child.pid, "began": began(child.pid), **own})
        code = _wait(child, log, run_folder)
        ended = {"code": code, "at": time.time(), "out_of_memory": code < 0 and out_of_memory_kills() > killed}
        if code < 0 and -code not in (signal.SIGTERM, signal.SIGINT):
            output.write(f"{cause(ended)}\n".encode())
    write(folder / ENDED, ended)


def _wait(child: subprocess.Popen[bytes], log: Path, run_folder: Path | None) -> int:
    """Return the command's exit code; link the log into the run's folder as soon as that exists."""
    while run_folder is not None and not (run_folder / LOG).exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(_LOOK)
        if (run_folder / "args.json").exists():
            share_log(log, run_folder / LOG)
    return child.wait()


def share_log(log: Path, name: Path) -> None:
    """Hard-link a log, so that both folders have it; skip this on file systems without hard links."""
    with contextlib.suppress(OSError):
        os.link(log, name, follow_symlinks=False)


def cause(ended: dict[str, Any]) -> str:
    """Return the message for a command that a signal ended."""
    number = -int(ended["code"])
    name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
    if ended["out_of_memory"]:
        return f"Ended by signal {number} ({name}): the machine was out of memory."
    return f"Ended by signal {number} ({name}) without an error message."


def began(process: int) -> float | None:
    """Return when a process began, in ticks since boot; it tells apart processes with a reused PID."""
    try:
        return float(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def out_of_memory_kills() -> int:
    """Return how many processes of this control group, or else machine, the kernel killed for lack of memory."""
    for path, key in (("/sys/fs/cgroup/memory.events", "oom_kill"), ("/proc/vmstat", "oom_kill")):
        with contextlib.suppress(OSError, ValueError):
            found = dict(line.split() for line in Path(path).read_text().splitlines())
            if key in found:
                return int(found[key])
    return 0


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a file atomically."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(json.dumps(content), encoding="utf-8")
    draft.replace(path)


def main() -> None:
    """Detach from the parent process, and run the command."""
    folder = Path(sys.argv[1])
    os.setsid()
    if os.fork():
        os._exit(0)
    try:
        run_job(folder)
    except OSError as error:
        write(folder / ENDED, {"code": 127, "at": time.time(), "out_of_memory": False, "problem": str(error)})


if __name__ == "__main__":
    main()

"""Commands in processes of their own, watched line by line, of which nothing is left in the end."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

SWIFT = [sys.executable, "-m", "swift"]
_MARK = "SWIFT_TEST_RUN"
_TIMEOUT = 240
"""Seconds; generous, since machines that run tests are busy."""


class Run:
    """A command that was started in `folder`."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self._output = folder / f"output-{self.mark[:8]}.txt"
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment, _MARK: self.mark},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What was printed so far, on both streams."""
        return self._output.read_text()

    def until(self, pattern: str) -> str:
        """Wait for a line; answers what the pattern's first group, or all of it, matched."""
        end = time.monotonic() + _TIMEOUT
        while True:
            ended = self.process.poll() is not None
            if found := re.search(pattern, self.output):
                return found[found.lastindex or 0]
            assert not ended, f"{pattern!r} was never printed:\n{self.output}"
            assert time.monotonic() < end, f"{pattern!r} took too long:\n{self.output}"
            time.sleep(0.02)

    def ctrl_c(self) -> None:
        """What a terminal does: SIGINT to the foreground process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def code(self, within: float = _TIMEOUT) -> int:
        """Wait for the end."""
        return self.process.wait(within)

    def processes(self) -> list[psutil.Process]:
        """Every process of this run that lives, whatever session it is in."""
        return [each for each in psutil.process_iter() if _marked(each, self.mark)]

    def workers(self) -> dict[str, psutil.Process]:
        """Processes that train, by rank."""
        found = {}
        for each in self.processes():
            with suppress(psutil.Error):
                if "LOCAL_RANK" in each.environ():
                    found[each.environ()["RANK"]] = each
        return found

    def leaves_nothing(self) -> bool:
        """Wait until all processes are gone; False when some are not."""
        end = time.monotonic() + 60
        while self.processes():
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True


def _marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == mark
    except psutil.Error:
        return False


@contextmanager
def started(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Run]:
    """A command that is running; killed with all its processes if it still is in the end."""
    run = Run(command, folder, environment or {})
    try:
        yield run
    finally:
        for each in run.processes():
            with suppress(psutil.NoSuchProcess):
                each.kill()
        run.process.wait(30)


def sft(*flags: str) -> list[str]:
    """`swift sft` on the tiny model and data of the test's folder."""
    return [*SWIFT, "sft", "--model", "tiny", "--dataset", "data.jsonl", "--logging_steps", "1", *flags]


def sabotage(folder: Path, rank: int, deed: str) -> dict[str, str]:
    """The environment in which the process of that rank does something in its second step."""
    script = f"""
import os
if os.environ.get("RANK") == "{rank}":
    from swift.train.loop import Loop
    whole = Loop._step
    def step(self, number):
        if number == 1:
            {deed}
        return whole(self, number)
    Loop._step = step
"""
    (folder / "sabotage").mkdir()
    (folder / "sabotage" / "sitecustomize.py").write_text(script)
    return {"PYTHONPATH": str(folder / "sabotage")}


def resume_command(output: str) -> list[str]:
    """The command that a stopped run prints, run by this interpreter."""
    (line,) = re.findall(r"^Go on: (swift .*)$", output, re.MULTILINE)
    return [*SWIFT, *shlex.split(line)[1:]]


def noise(output: str) -> list[str]:
    """Lines that no user should see: tracebacks, and what torch's launcher and C++ side log."""
    return [
        line for line in output.splitlines() if re.search(r"Traceback|elastic|^\[?[WEF]\d{4} |\[rank\d|Warning", line)
    ]

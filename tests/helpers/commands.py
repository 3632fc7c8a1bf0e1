"""The ways to run a command, from the cheapest: in this process, in some that are forked from it, in an interpreter.

`typed` and `typed_on` find everything imported. `started` pays ten seconds for every process, and is for tests that are
about starting, stopping and dying.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import psutil

SWIFT = [sys.executable, "-m", "swift"]
_MARK = "SWIFT_TEST_RUN"
_TIMEOUT = 600
"""Seconds; generous, since machines that run tests are busy."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    output: str
    """What was printed, on both streams."""


def typed(words: Sequence[str], folder: Path) -> Ended:
    """Runs `swift WORDS` in this process."""
    from swift.cli.main import run

    said = io.StringIO()
    with chdir(folder), redirect_stdout(said), redirect_stderr(said):
        code = run(words)
    return Ended(code, said.getvalue())


def typed_on(processes: int, words: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Ended:
    """Runs `swift WORDS` on several processes that are forked from this one, with the variables that torchrun sets."""

    def run() -> int:
        from swift.cli import main

        return main.run(words)

    return forked(processes, run, folder, environment)


def forked(
    processes: int, program: Callable[[], object], folder: Path, environment: Mapping[str, str] | None = None
) -> Ended:
    """Runs a function as `typed_on` runs a command; its answer is the exit code where it is a number."""
    from swift_testing.crew import free_port

    shared = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    files = [folder / f"process-{rank}.txt" for rank in range(processes)]

    def work(rank: int) -> None:
        code: object = 1
        try:
            os.environ.update({**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), **(environment or {})})
            # The streams that the system knows, since libraries print there too; the test runner's are others.
            printed = os.open(files[rank], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
            os.chdir(folder)
            code = program()
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        finally:
            # What the parent registered (pytest's own hooks among it) is not the child's to run.
            os._exit(code if isinstance(code, int) else 0)

    workers = [get_context("fork").Process(target=work, args=(rank,)) for rank in range(processes)]
    for worker in workers:
        worker.start()
    end = time.monotonic() + _TIMEOUT
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
        worker.kill()
        worker.join()
    output = "".join(file.read_text() for file in files if file.exists())
    codes = [worker.exitcode or 0 for worker in workers]
    assert min(codes) >= 0, f"ended by signals: {codes}\n{output}"
    return Ended(max(codes), output)


class Run:
    """A command that was started in `folder`."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self._output = folder / f"output-{self.mark[:8]}.txt"
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                # The second keeps engines that give themselves a title from writing it over the mark.
                env={**os.environ, "PYTHONUNBUFFERED": "1", "SPT_NOENV": "1", **environment, _MARK: self.mark},
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
        while left := run.processes():  # again: one that was just starting another was faster
            for each in left:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            psutil.wait_procs(left, timeout=5)
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
    whole = Loop.make_step
    def step(self, number):
        if number == 1:
            {deed}
        return whole(self, number)
    Loop.make_step = step
"""
    (folder / "sabotage").mkdir()
    (folder / "sabotage" / "sitecustomize.py").write_text(script)
    return {"PYTHONPATH": str(folder / "sabotage")}


def resume_command(output: str) -> list[str]:
    """The command that a stopped run prints, run by this interpreter."""
    (line,) = re.findall(r"^Resume: (swift .*)$", output, re.MULTILINE)
    return [*SWIFT, *shlex.split(line)[1:]]


def noise(output: str) -> list[str]:
    """Lines that no user should see: tracebacks, and what torch's launcher and C++ side log."""
    return [
        line for line in output.splitlines() if re.search(r"Traceback|elastic|^\[?[WEF]\d{4} |\[rank\d|Warning", line)
    ]

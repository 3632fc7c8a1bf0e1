"""A server in its own processes: started under a guard, watched until it is ready, stopped with its children."""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType

import psutil

from swift_infer.servers import guard

GRACE = 15.0
"""Seconds that a server gets to end by itself."""
MARK = "SWIFT_SERVED_BY"
"""Environment variable that all processes of one server have in common."""
_STAY_MARKED = {"SPT_NOENV": "1"}
"""Engines give themselves titles with setproctitle, which otherwise writes over the environment that others see."""
_GLANCE = 0.1
_QUIET = 20.0
"""Seconds between lines of progress where there is no terminal."""


class Ended(Exception):
    """The server ended by itself."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Terminated(BaseException):
    """SIGTERM, as `KeyboardInterrupt` is SIGINT."""


class Server:
    """Runs while the `with` lasts; Ctrl-C and SIGTERM end it, and so does the end of this process, however it comes."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        stage_of: Callable[[str], str],
        *,
        verbose: bool,
    ) -> None:
        self._log = log
        self._stage_of = stage_of
        self._verbose = verbose
        self._over = threading.Event()
        self._mark = uuid.uuid4().hex
        self._before = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, _terminate)
        args = [sys.executable, "-I", "-S", guard.__file__, str(GRACE), *command]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                args,
                env={**environment, MARK: self._mark, **_STAY_MARKED},
                stdin=subprocess.PIPE,  # the guard's lifeline
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for this process alone, which then ends it in order
            )
        self._follower = threading.Thread(target=self._follow, daemon=True)
        if verbose:
            self._follower.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.stop()
        finally:
            signal.signal(signal.SIGTERM, self._before)

    def wait_until_ready(self, url: str) -> None:
        """Wait until the server is healthy, and show its progress meanwhile. Raises `Ended`."""
        line = _Progress(quiet=self._verbose)
        try:
            while True:
                code = self._process.poll()
                if code is not None:
                    raise Ended(code)
                if _healthy(f"{url}/health"):
                    break
                line.show(self._stage_of(self._log.read_text(encoding="utf-8", errors="replace")))
                time.sleep(_GLANCE)
        finally:
            line.clear()
        line.done()

    def wait(self) -> int:
        """Until it is to stop: 0, since that is how a server ends. One that ends by itself raises `Ended`."""
        try:
            raise Ended(self._process.wait())
        except (KeyboardInterrupt, Terminated):
            return self.stop()

    def stop(self) -> int:
        """Terminate all of its processes; a second signal kills them at once."""
        if self._process.poll() is None:
            sys.stderr.write("Stopping. Press Ctrl-C again to stop at once.\n")
            self._process.terminate()
        while True:
            try:
                self._process.wait()
                break
            except (KeyboardInterrupt, Terminated):
                self._process.terminate()
        if self._process.returncode < 0:
            _end_marked(self._mark)
        self._over.set()
        if self._verbose:
            self._follower.join()
        return 0

    def _follow(self) -> None:
        with self._log.open(encoding="utf-8", errors="replace") as log:
            over = False
            while not over:
                over = self._over.wait(_GLANCE)
                sys.stderr.write(log.read())
                sys.stderr.flush()


class _Progress:
    """A line that changes on a terminal; elsewhere a line now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._start = self._last = time.monotonic()
        self._stage = ""

    def show(self, stage: str) -> None:
        now = time.monotonic()
        if self._quiet:
            return
        if self._live:
            sys.stderr.write(f"\r\x1b[K{stage} ... {now - self._start:.0f} s")
            sys.stderr.flush()
        elif stage != self._stage or now - self._last > _QUIET:
            sys.stderr.write(f"{stage} ... {now - self._start:.0f} s\n")
            sys.stderr.flush()
            self._last = now
        self._stage = stage

    def clear(self) -> None:
        if self._live and not self._quiet:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def done(self) -> None:
        sys.stderr.write(f"Ready after {time.monotonic() - self._start:.0f} s.\n")


def _end_marked(mark: str) -> None:
    """End what a guard left behind that was itself killed: asked first, then not."""
    left = [each for each in psutil.process_iter() if _mark_of(each) == mark]
    for ask in (psutil.Process.terminate, psutil.Process.kill):
        for each in left:
            with suppress(psutil.NoSuchProcess):
                ask(each)
        _, left = psutil.wait_procs(left, timeout=guard.LAST_SECONDS)


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except (psutil.Error, OSError):  # another user's, or it has just ended
        return None


def _healthy(url: str) -> bool:
    try:
        # The certificate is the user's own, and this is the machine that it is on.
        https = urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
        with urllib.request.build_opener(urllib.request.ProxyHandler({}), https).open(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated

"""An interpreter that has imported vLLM: what it is asked to run is forked from one process that all tests share.

Importing vLLM takes most of ten seconds of a processor, and the tests start it about twenty times. `interpreter()` is
the path of a program that is used as Python is: modules and scripts it runs in a fork, anything else, such as `-c`, it
hands on to the real Python. A program sees its own arguments, folder, environment, streams and session; signals reach
it, and it ends with whoever started it. For tests of how servers answer, not of how they start and stop.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = "SWIFT_TESTS_IMPORTED"
"""Names the variable with the folder of this session's interpreter; all workers have the same."""
OWNER = "SWIFT_TESTS_OWNER"
"""And this one the process with which it ends."""
MODULES = (
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.llm",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.qwen3",
    "vllm.model_executor.layers.pooler",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
    "transformers",
)
ENVIRONMENT = {
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCH_COMPILE_DISABLE": "1",
}
"""What is read while modules are imported, as all that is started by it wants it."""
CLIENT = """#!{python} -IS
import array, json, os, signal, socket, sys
words = sys.argv[1:]
if not words or (words[0] != "-m" and words[0].startswith("-")):
    os.execv({python!r}, [{python!r}, *words])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
asked = {{"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}}
asked = json.dumps({{**asked, "processors": sorted(os.sched_getaffinity(0))}}).encode()
server.sendmsg(
    [len(asked).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
)
server.sendall(asked)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: server.sendall(bytes([number])))
told = b""
while len(told) < 4 and (more := server.recv(4)):
    told += more
code = int.from_bytes(told, "big", signed=True) if told else 1
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def interpreter() -> Path:
    """Start it, if no other test has."""
    folder = Path(os.environ[FOLDER])
    folder.mkdir(exist_ok=True)
    client, address = folder / "python", folder / "socket"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not client.exists():
            with (folder / "log").open("w") as log:
                begun = subprocess.run(
                    [sys.executable, __file__, str(address), os.environ[OWNER]],
                    env={**os.environ, **ENVIRONMENT, "TMPDIR": str(folder)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                    check=True,
                    text=True,
                )
            while not address.exists():
                assert Path(f"/proc/{int(begun.stdout)}").exists(), (folder / "log").read_text()
                time.sleep(0.1)
            client.write_text(CLIENT.format(python=sys.executable, address=str(address)))
            client.chmod(0o755)
    return client


class _Forking:
    """Forks programs, hands signals on to them, and tells how they ended."""

    def __init__(self, address: str, owner: int) -> None:
        self._owner = owner
        self._python = str(Path(address).with_name("python"))
        self._programs: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address + ".new")
        self._listener.listen(64)
        self._ended, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._listener, selectors.EVENT_READ, self._begin)
        self._selector.register(self._ended, selectors.EVENT_READ, self._collect)
        Path(address + ".new").rename(address)

    def run(self) -> None:
        while Path(f"/proc/{self._owner}").exists():
            for key, _ in self._selector.select(timeout=1):
                key.data(key.fileobj)

    def stop(self) -> None:
        for program in self._programs:
            _kill(program)

    def _begin(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        size, streams, _, _ = socket.recv_fds(client, 8, 3)
        asked = b""
        while len(asked) < int.from_bytes(size, "big") and (more := client.recv(1 << 16)):
            asked += more
        program = os.fork()
        if program == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for each in (listener, client, *self._programs.values()):
                each.close()
            os.close(self._ended)
            _become(json.loads(asked), streams, self._python)
        for stream in streams:
            os.close(stream)
        self._programs[program] = client
        self._selector.register(client, selectors.EVENT_READ, lambda _: self._hand_on(program))

    def _hand_on(self, program: int) -> None:
        try:
            numbers = self._programs[program].recv(64)
        except OSError:
            numbers = b""
        if not numbers:  # whoever asked for it was killed
            _kill(program)
            self._selector.unregister(self._programs[program])
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(program, number)

    def _collect(self, ended: int) -> None:
        os.read(ended, 4096)
        while True:
            try:
                program, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if program == 0:
                return
            client = self._programs.pop(program)
            with suppress(KeyError):
                self._selector.unregister(client)
            with suppress(OSError):
                client.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
            client.close()


def _kill(program: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program, signal.SIGKILL)


def _become(asked: dict[str, Any], streams: list[int], python: str) -> None:
    """Run the program in this process, and end it. What it starts with `sys.executable` is forked as well."""
    code: object = 1
    try:
        os.setsid()
        with suppress(OSError):
            os.sched_setaffinity(0, asked["processors"])
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
            os.close(stream)
        sys.stdin = os.fdopen(0, "r", closefd=False)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        tempfile.tempdir = None  # of the worker that asks: others may be gone
        sys.executable = python
        sys.path[:0] = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in sys.path]
        _say_what_is_asked()
        words: list[str] = asked["words"]
        if words[0] == "-m":
            sys.argv = words[1:]
            sys.path.insert(0, asked["folder"])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
            runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]  # what waits for threads at the end of any program
            atexit._run_exitfuncs()
            sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _say_what_is_asked() -> None:
    """vLLM reads how much it is to say when it is imported."""
    from vllm import logger

    logger._configure_vllm_root_logger()


def main() -> None:
    if process := os.fork():  # a child of nobody: tests count those of their own process
        print(process, flush=True)
        os._exit(0)
    os.dup2(2, 1)
    for module in MODULES:
        importlib.import_module(module)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    forking = _Forking(sys.argv[1], int(sys.argv[2]))
    try:
        forking.run()
    finally:
        forking.stop()


if __name__ == "__main__":
    main()

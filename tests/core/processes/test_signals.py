"""What a signal does to a process, without a model: in this process, or in small ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from swift.processes.signals import Stopped, graceful_stop, prompt_stop


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def python(script: str) -> subprocess.Popen[str]:
    """A process that says 'ready' and then is sent signals."""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_training_process_notes_the_first_signal_and_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    with graceful_stop() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        # GNU timeout sends its signal to the command and then to the command's group.
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: received)
        time.sleep(0.1)
    assert received == [signal.SIGTERM]
    assert capfd.readouterr().err.count("SIGTERM: finishing the step and saving") == 1


def test_handlers_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with graceful_stop():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    with prompt_stop():
        pass
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_signal_to_a_forked_helper_is_not_a_signal_to_the_run() -> None:
    with graceful_stop() as received:
        reader, writer = os.pipe()
        helper = os.fork()
        if helper == 0:
            os.write(writer, b"ready")
            time.sleep(60)
            os._exit(0)
        os.read(reader, 5)
        os.kill(helper, signal.SIGTERM)
        _, status = os.waitpid(helper, 0)
        time.sleep(0.2)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert received == []


def test_before_the_first_step_a_signal_stops_at_once() -> None:
    def start() -> None:
        with prompt_stop():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)

    with pytest.raises(Stopped) as stopped:
        start()
    assert stopped.value.number == signal.SIGINT


def test_an_error_in_the_wake_of_a_signal_is_not_reported() -> None:
    def start() -> None:
        with prompt_stop():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(30)
            except Stopped:
                raise RuntimeError("connection closed by peer") from None

    with pytest.raises(Stopped):
        start()


DEADLOCK = """
import ctypes, threading
from swift.processes.signals import graceful_stop, prompt_stop
lock = ctypes.CDLL(None).pthread_mutex_lock
mutex = ctypes.create_string_buffer(64)
with {context}():
    lock(mutex)
    threading.Timer(0.5, print, ["ready"], {{"flush": True}}).start()
    lock(mutex)
"""
"""Waits for ever outside Python, as in a collective whose peer is gone."""


def test_a_start_that_hangs_outside_python_ends_all_the_same() -> None:
    process = python(DEADLOCK.format(context="prompt_stop"))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (143, "Stopped by SIGTERM.\n")


def test_a_second_ctrl_c_ends_a_step_that_hangs() -> None:
    process = python(DEADLOCK.format(context="graceful_stop"))
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert "Repeat to exit at once" in process.stdout.readline()
    time.sleep(1.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130


def test_a_signal_that_was_ignored_from_the_start_stays_ignored() -> None:
    script = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from swift.processes.signals import prompt_stop\n"
        "with prompt_stop():\n"
        "    print('ready', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.5)\n"
    )
    assert python(script).wait(timeout=60) == 0

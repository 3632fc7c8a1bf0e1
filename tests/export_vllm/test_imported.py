"""The interpreter that has imported vLLM: a program that it forks can't be told from one that Python runs."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from imported import interpreter

PROGRAM = """
import os, sys, time
print("vllm" in sys.modules, sys.argv[1:], os.environ["MARK"], os.getcwd(), sys.stdin.read(), os.getpid(), flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(7)
"""

pytestmark = pytest.mark.full


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def begun(program: Path, seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [interpreter(), str(program), str(seconds)],
        cwd=program.parent,
        env={"MARK": "mine"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("given")
    process.stdin.close()
    return process


def test_program_gets_own_argv_cwd_env_streams_and_exit_code(program: Path) -> None:
    """A program has its own argv, folder, environment, streams and exit code."""
    process = begun(program, 0)
    assert process.wait(60) == 7
    assert process.stdout is not None
    said = process.stdout.read()
    assert said.startswith(f"True ['0'] mine {program.parent} given ")


def test_signals_reach_child_and_it_ends_with_parent(program: Path) -> None:
    ended = begun(program, 600)
    killed = begun(program, 600)
    numbers = [int(process.stdout.readline().split()[-1]) for process in (ended, killed) if process.stdout]
    ended.send_signal(signal.SIGTERM)
    killed.kill()
    assert (ended.wait(60), killed.wait(60)) == (-signal.SIGTERM, -signal.SIGKILL)
    end = time.monotonic() + 60
    while any(map(psutil.pid_exists, numbers)):
        assert time.monotonic() < end, f"left: {numbers}"
        time.sleep(0.05)


def test_what_is_no_program_is_for_the_real_python() -> None:
    words = [interpreter(), "-c", "import sys; print('vllm' in sys.modules)"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"

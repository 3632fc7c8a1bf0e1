"""The reward `code`: runs the program of a completion against the tests of its row. This is no security boundary."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveFloat

from swift.config.options import Section
from swift.contracts import RewardItem
from swift_rl.rewards.base import CompletionReward

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_LIMITED = """
import math, resource, runpy, sys
memory, seconds = int(sys.argv[1]), math.ceil(float(sys.argv[2]))
for limit, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_FSIZE, 2**24),
                    (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_CORE, 0)):
    resource.setrlimit(limit, (most, most))
sys.argv = ["completion.py"]
runpy.run_path("completion.py", run_name="__main__")
"""
"""Sets the limits in the process that they hold for."""


class CodeOptions(Section):
    """Options of `code`."""

    seconds: Annotated[PositiveFloat, Field(le=3600)] = Field(5.0, description="Timeout of a test")
    memory: Annotated[float, Field(gt=0.0, le=1024)] = Field(1.0, description="GiB of address space of the program")
    all_or_nothing: bool = Field(False, description="1 if all tests pass, else 0")


class CodeReward(CompletionReward):
    """The part of a row's tests that the last Python block of the completion passes.

    The column `tests` holds Python statements that fail by raising (a text, or a list of texts, one for each test), or
    pairs of standard input and output: `[{"input": "2", "output": "4"}]`.
    """

    options_model = CodeOptions
    wants = ("tests",)

    def __init__(self, options: CodeOptions) -> None:
        self._options = options

    def score_one(self, item: RewardItem) -> float | None:
        """Return the value of a completion."""
        tests = item.columns.get("tests")
        listed = tests if isinstance(tests, list) else [tests]
        if not tests:
            return None
        blocks = _FENCED.findall(item.completion)
        program = blocks[-1] if blocks else item.completion
        passed = [self._passes(program, test) for test in listed]
        if self._options.all_or_nothing:
            return float(all(passed))
        return sum(passed) / len(passed)

    def _passes(self, program: str, test: Any) -> bool:
        if not isinstance(test, dict):
            code, _ = self._run(f"{program}\n\n{test}\n", "")
            return code == 0
        code, printed = self._run(program, str(test.get("input", "")))
        return code == 0 and printed.split() == str(test.get("output", "")).split()

    def _run(self, program: str, given: str) -> tuple[int, str]:
        """Return the exit code of a program and what it printed; it has a folder of its own and no variables."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            Path(folder, "completion.py").write_text(program, encoding="utf-8", errors="replace")
            printed = Path(folder, "printed")
            with printed.open("wb") as out:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-c", _LIMITED, str(int(self._options.memory * 2**30)), *self._seconds],
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=subprocess.DEVNULL,
                    cwd=folder,
                    env={},
                )
                try:
                    process.communicate(given.encode(), timeout=self._options.seconds)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    return -1, ""
            return process.returncode, printed.read_text(encoding="utf-8", errors="replace")

    @property
    def _seconds(self) -> tuple[str]:
        return (str(self._options.seconds),)

"""The judge of malformed input sees what it must see."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from judge import CANARY, Case, judge


def refuse(argv: Sequence[str]) -> int:
    sys.stderr.write(f"Error: {argv[0]} cannot be read.\n")
    return 2


def after(act: Callable[[], object]) -> Callable[[Sequence[str]], int]:
    """A command that does something before it refuses."""

    def command(argv: Sequence[str]) -> int:
        act()
        return refuse(argv)

    return command


def swallow() -> None:
    with contextlib.suppress(BaseException):
        time.sleep(30)


def leave_store() -> None:
    Path(os.environ["XDG_CACHE_HOME"], "swift/tokenised/abc").mkdir(parents=True)


UNCLEAR: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "an exception escapes": (after(lambda: {}["key"]), "KeyError escaped from .*test_judge.py"),
    "a surrogate is printed": (after(lambda: print("\ud800")), "UnicodeEncodeError escaped"),
    "a traceback is printed": (
        after(lambda: os.write(2, b"Traceback (most recent call last)")),
        "a traceback was printed",
    ),
    "it hangs": (after(lambda: time.sleep(30)), "more than 0.2 seconds"),
    "it hangs and catches everything": (after(swallow), "more than 0.2 seconds"),
    "it takes all memory": (after(lambda: bytes(64 << 30)), "MemoryError escaped"),
    "it exits": (after(lambda: sys.exit(7)), "the exit code is 7"),
    "it works": (lambda argv: 0, "the exit code is 0"),
    "another file is named": (lambda argv: refuse(["other"]), "does not name 'file.jsonl'"),
    "code is run": (after(lambda: Path(CANARY).touch()), "wrote the canary"),
    "an output folder is left": (after(lambda: Path("output").mkdir()), "left output"),
    "a store is left": (after(leave_store), "left abc"),
}


def named(folder: Path) -> list[str]:
    return ["file.jsonl"]


@pytest.mark.parametrize("case", UNCLEAR)
def test_unclear_outcome_fails(case: str, tmp_path: Path) -> None:
    command, complaint = UNCLEAR[case]
    with pytest.raises(pytest.fail.Exception, match=complaint):
        judge(Case(case, named, "refused", ("file.jsonl",)), tmp_path, command=command, seconds=0.2)


def test_clear_refusal_passes_and_changes_nothing(tmp_path: Path) -> None:
    at, environment, streams = Path.cwd(), dict(os.environ), (sys.stdin, sys.stdout, sys.stderr)
    (tmp_path / "model").mkdir()

    def build(folder: Path) -> list[str]:
        assert Path.cwd() == folder
        assert (folder / "model").is_dir()
        return ["file.jsonl"]

    printed = judge(Case("clear", build, "refused", ("file.jsonl",)), tmp_path, command=refuse)
    assert printed == "Error: file.jsonl cannot be read.\n"
    assert (Path.cwd(), dict(os.environ), (sys.stdin, sys.stdout, sys.stderr)) == (at, environment, streams)

"""Judge how a command of swift answers files that somebody else made, damaged or hostile, in this process.

Properties draw one value or one kind of damage from `strategies`; what deserves a name is a `Case` of a table. Both are
built in an empty working folder into which the template was copied: `model` (a tiny model of random weights, byte
tokenizer) and `data.jsonl` (8 conversations). A class that needs more makes a template of its own, once. A case should
take less than 0.3 s: prefer commands that end before a model is loaded, and keep what must be loaded tiny.

`make test` runs a sample of both, `make test-all` all of them.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Literal, TypeVar

import pytest

from swift.cli.main import run

CANARY = "canary"
"""What hostile code writes, as `folder / CANARY`, where it is run after all."""
SECONDS = 60.0
"""After so long a case hangs. Clear answers take a fraction of a second, or a few where torch is imported first; a
busy machine takes many times that."""
MEDIA = "media"
"""Among the stores of the cache: the images and sounds that rows hold themselves, each whole."""
MEMORY = 2 << 30
"""Bytes of address space that a case may take beyond what this process has."""

Build = Callable[[Path], Sequence[str]]
"""Writes the input into the working folder and returns the command line."""
Expected = Literal["refused", "works", "either"]
"""'either': it may be refused as well as accepted, but never otherwise than clearly."""
T = TypeVar("T")
Table = Mapping[str, tuple[T, *tuple[str, ...]]]
"""Cases by name: an input, and what its refusal must contain. An input without such strings must work."""


@dataclass(frozen=True)
class Case:
    """One hostile input, and how it must be answered."""

    name: str
    """Names the test; unique in its class and the same in every run."""
    build: Build
    expected: Expected = "refused"
    names: tuple[str, ...] = ()
    """What a refusal must contain: the file, the line, the key."""
    prints: tuple[str, ...] = ()
    """What must be printed whatever the outcome: the reason why a sample is not used."""
    exit_code: int = 2
    """Of a refusal: 2, or 3 for plugins, 1 for a run that failed."""
    leaves: tuple[str, ...] = ()
    """Patterns of what a refused command may leave in the folder, such as the file with a plugin's traceback."""
    stdin: bytes = b""


def table(title: str, cases: Table[T], builder: Callable[[T], Build] | None = None) -> list[Case]:
    """Return the cases of a table; `builder` makes of an input what builds it."""
    found = []
    for name, (content, *names) in cases.items():
        build = builder(content) if builder else content
        found.append(Case(f"{title}: {name}", build, "refused" if names else "works", tuple(names)))  # type: ignore[arg-type]
    return found


def sampled(cases: Sequence[Case], every: int = 10) -> list[object]:
    """Return the cases as parameters of a test: every so-manyth is quick."""
    marks = [(pytest.mark.full,) if index % every else () for index in range(len(cases))]
    return [pytest.param(case, id=case.name, marks=each) for case, each in zip(cases, marks, strict=True)]


def judge(
    case: Case, template: Path, *, command: Callable[[Sequence[str]], int] = run, seconds: float = SECONDS
) -> str:
    """Run the case in a copy of `template` and returns what was printed; fails the test where the answer is unclear.

    Unclear are: an exception that escapes, a traceback, a hang, the wrong exit code, a refusal that does not name what
    `case.names` lists or that leaves anything behind, and hostile code that was run.
    """
    parent = Path(tempfile.mkdtemp(prefix="malformed-"))
    folder, cache_folder = parent / "here", parent / "cache"
    try:
        shutil.copytree(template, folder, symlinks=True)
        with _in_folder(folder, cache_folder):
            argv = [str(word) for word in case.build(folder)]
            before = _listed(folder)
            code, printed, failures = _answer(command, argv, case.stdin, seconds)
            failures += _judged(case, code, printed)
            if (folder / CANARY).exists():
                failures.append("code of the input was run: it wrote the canary")
            if code and (left := _left(case, _listed(folder) - before, cache_folder)):
                failures.append(f"the refused command left {', '.join(left)}")
            failures += _process_groups()
        if failures:
            complaints = "\n- ".join(failures)
            pytest.fail(f"{case.name}: swift {' '.join(argv)[:500]}\n- {complaints}\n{printed[-4000:]}", pytrace=False)
        return printed
    finally:
        shutil.rmtree(parent, ignore_errors=True)


class Hung(BaseException):
    """Raised in a command that takes too long: no `except Exception` of the command takes it for its own."""


def _answer(
    command: Callable[[Sequence[str]], int], argv: list[str], stdin: bytes, seconds: float
) -> tuple[int, str, list[str]]:
    """Return the exit code, what was printed, and what failed on the way."""
    failures: list[str] = []
    code = -1
    with _captured(stdin) as printed, _alarm(seconds) as rang, _less_memory(MEMORY):
        try:
            code = command(argv)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        except Hung:
            pass
        except BaseException as escaped:  # whatever it is, a user would see its traceback
            frame = escaped.__traceback__
            while frame is not None and frame.tb_next is not None:
                frame = frame.tb_next
            where = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame is not None else "?"
            failures.append(f"{type(escaped).__name__} escaped from {where}: {str(escaped)[:1000]}")
    if rang:
        failures = [f"it took more than {seconds} seconds"]
    return code, printed(), failures


def _judged(case: Case, code: int, printed: str) -> list[str]:
    """Return what is wrong with this answer."""
    failures = []
    if "Traceback (most recent call last)" in printed:
        failures.append("a traceback was printed")
    if code not in {"refused": (case.exit_code,), "works": (0,), "either": (0, case.exit_code)}[case.expected]:
        failures.append(f"the exit code is {code}, but it should be {case.expected} (refusals: {case.exit_code})")
    if code == case.exit_code:
        refusal = f"\n{printed}".rpartition("\nError: ")[2]  # where a line begins: `ValueError: ...` may stand in it
        failures += [f"the refusal does not name {name!r}" for name in case.names if name not in refusal]
    failures += [f"nothing printed contains {text!r}" for text in case.prints if text not in printed]
    return failures


def _listed(folder: Path) -> set[str]:
    """Return the names of all that lies in a folder and its folders; links are not followed."""
    names = set()
    for parent, folders, files in os.walk(folder):
        names |= {os.path.relpath(os.path.join(parent, name), folder) for name in (*folders, *files)}  # noqa: PTH118
    return names


def _left(case: Case, new: set[str], cache_folder: Path) -> list[str]:
    """Return what a refused command left: anything in the working folder, and half-written stores in the cache."""
    allowed = {name for name in new for pattern in case.leaves if fnmatch(name, pattern)}
    stores = cache_folder / "swift" / "tokenised"
    halves = [
        store.name
        for store in stores.glob("*")
        if store.name != MEDIA
        and (store.name.startswith(".") or (store.is_dir() and not (store / "manifest.json").exists()))
    ]
    return sorted(new - allowed - {CANARY}) + halves


def _process_groups() -> list[str]:
    """Return whether torch.distributed was left initialised, and ends it for the cases that follow."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return []
    distributed.destroy_process_group()
    return ["torch.distributed was left initialised"]


@contextlib.contextmanager
def _in_folder(folder: Path, cache_folder: Path) -> Iterator[None]:
    """Work in `folder` with a cache of its own, and puts back what a command may change of this process."""
    at, environment, modules_from = Path.cwd(), dict(os.environ), list(sys.path)
    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = str(cache_folder)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        os.chdir(at)
        sys.path[:] = modules_from
        os.environ.clear()
        os.environ.update(environment)


@cache
def _streams() -> tuple[io.TextIOWrapper, io.TextIOWrapper]:
    """Return stdout and stderr of the cases: files, with the same strictness about what can be encoded.

    They are never closed: libraries that are first imported in a case keep stderr for their messages.
    """
    out, err = (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors=errors, buffering=1)  # noqa: SIM115
        for errors in ("strict", "backslashreplace")
    )
    return out, err


@contextlib.contextmanager
def _captured(stdin: bytes) -> Iterator[Callable[[], str]]:
    """Capture what Python and C code print; the value returns it."""
    out, err = _streams()
    for stream in (out, err):
        stream.seek(0)
        stream.truncate()
    printed: list[str] = []
    saved = [os.dup(1), os.dup(2)]
    streams = sys.stdin, sys.stdout, sys.stderr
    for stream in streams[1:]:
        stream.flush()
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"), out, err
    try:
        yield lambda: "".join(printed)
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, handle in enumerate(saved, 1):
            os.dup2(handle, number)
            os.close(handle)
        for stream in (out, err):
            stream.flush()
            content = os.pread(stream.fileno(), 4 << 20, 0)
            printed.append(content.decode("utf-8", "replace"))


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[list[str]]:
    """Raise `Hung` in the body every so many seconds; the value is empty unless it did. Others' alarms are put off."""
    rang: list[str] = []

    def ring(_signal: int, _frame: FrameType | None) -> None:
        rang.append("rang")
        raise Hung

    started = time.monotonic()
    others, interval = signal.getitimer(signal.ITIMER_REAL)
    handler = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield rang
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if others:
            signal.setitimer(signal.ITIMER_REAL, max(others - (time.monotonic() - started), 0.001), interval)


@contextlib.contextmanager
def _less_memory(size: int) -> Iterator[None]:
    """Bound the address space, so that a bomb is a `MemoryError` of its case and not the end of the machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

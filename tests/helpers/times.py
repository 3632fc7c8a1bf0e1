"""How long each test took, by the clock and of the processors: `pytest --times=FILE` keeps the list.

The clock of a busy machine says little. The processors' time is that of the test's own process and of all that it
started and waited for; what is still running when a test ends counts for the one in which it ends.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

SLOWEST = 40


class Times:
    """Notes what each phase of a test took; where the tests are dealt out to workers, they send it with the report."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._before = _processor_seconds()
        self._clock: Counter[str] = Counter()
        self._processors: Counter[str] = Counter()

    def pytest_collection_finish(self) -> None:
        self._before = _processor_seconds()  # what was imported to find the tests is none of the first one's

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        now = _processor_seconds()
        report.processor_seconds = now - self._before
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._clock[report.nodeid] += report.duration
        self._processors[report.nodeid] += getattr(report, "processor_seconds", 0.0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text("\n".join(self._lines()) + "\n", encoding="utf-8")

    def _lines(self) -> Iterator[str]:
        """The slowest tests, then all files; the processors' seconds first, then the clock's."""
        total, clock = sum(self._processors.values()), sum(self._clock.values())
        yield f"{len(self._clock)} tests took {total:.0f} s of processors, {clock:.0f} s one after the other"
        yield f"\nThe {SLOWEST} slowest tests: processors' s, clock's s"
        for test, seconds in self._processors.most_common(SLOWEST):
            yield f"{seconds:8.1f} {self._clock[test]:8.1f}  {test}"
        yield "\nFiles"
        files: Counter[str] = Counter()
        of_clock: Counter[str] = Counter()
        for test, seconds in self._processors.items():
            files[test.partition("::")[0]] += seconds
            of_clock[test.partition("::")[0]] += self._clock[test]
        for file, seconds in files.most_common():
            yield f"{seconds:8.1f} {of_clock[file]:8.1f}  {file}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, metavar="FILE", help="write which tests take long to this file")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--times")
    if file is not None:
        config.pluginmanager.register(Times(file.absolute()), "times-of-tests")


def _processor_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system

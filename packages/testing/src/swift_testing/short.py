"""The short form of the kit: the checks that find most mistakes, for `swift plugins --try`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from swift_testing.cases import BY_NAME, STEPS
from swift_testing.checks import Checks
from swift_testing.layouts import Layout
from swift_testing.trials import Trials

_TRIED = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ulysses")
"""Dimensions that the tiny dense model can be tried in."""


@dataclass(frozen=True)
class CheckResult:
    """Result of one check."""

    about: str
    problem: str = ""
    """Empty when all is well."""
    made: bool = True
    """Whether it was made; `about` says what was left out."""


def short_form(backend: str, processes: int) -> Iterator[CheckResult]:
    """Yield check by check: all on the default layout, the trajectory in each claimed dimension, then what is left."""
    layout = Layout(processes)
    with TemporaryDirectory(prefix="swift-testing-") as folder:
        trials = Trials(backend, Path(folder))
        dimensions = _dimensions(trials.capabilities.parallel, processes)
        checks = Checks(trials, [layout, *dimensions.values()])
        plain, accumulated = BY_NAME["clipped"], BY_NAME["accumulated"]
        for case in (plain, accumulated):
            checks.announce("trajectory", layout, case)
        for other in dimensions.values():
            checks.announce("trajectory", other, plain)
        checks.announce("resume", layout, plain)
        checks.announce("all_processes_end_alike", layout)
        steps: dict[str, Callable[[], None]] = {
            "hooks, options and capabilities": checks.contract,
            "the plugin is imported without torch": checks.light_import,
            "what it does not claim is refused": checks.refuses_what_it_does_not_claim,
            f"loss and gradient norm of {STEPS} steps": lambda: checks.trajectory(plain, layout),
            "the same, with accumulation": lambda: checks.trajectory(accumulated, layout),
            "evaluation": lambda: checks.evaluation(plain, layout),
            "weights and their names": lambda: checks.weights(plain, layout),
            "one tensor at a time": lambda: checks.one_tensor_at_a_time(plain, layout),
            "nothing is left behind": lambda: checks.nothing_is_left_behind(plain, layout),
            "saved and resumed": lambda: checks.resume(plain, layout),
            "all processes end alike": lambda: checks.all_processes_end_alike(layout),
            **{f"parallel.{name}": partial(checks.trajectory, plain, other) for name, other in dimensions.items()},
        }
        for about, check in steps.items():
            try:
                check()
            except AssertionError as problem:
                yield CheckResult(about, str(problem))
            else:
                yield CheckResult(about)
        for name in sorted(trials.capabilities.parallel - dimensions.keys() - _default(trials.capabilities.parallel)):
            yield CheckResult(f"parallel.{name}", made=False)


def _dimensions(claimed: frozenset[str], processes: int) -> dict[str, Layout]:
    """Return a layout for each claimed dimension that an even number of processes and the tiny model allow."""
    names = [name for name in _TRIED if name in claimed - _default(claimed)] if processes % 2 == 0 else []
    return {name: Layout(processes, {name: 2}) for name in names}


def _default(claimed: frozenset[str]) -> frozenset[str]:
    """Return the dimension that processes have where none is named, if it is the only one of data parallel."""
    data = claimed & {"dp_replicate", "dp_shard"}
    return data if len(data) == 1 else frozenset()

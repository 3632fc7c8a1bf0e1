"""The short form of the kit: the checks that find most mistakes, on one layout, for `swift plugins --try`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from swift.testing.cases import BY_NAME, STEPS
from swift.testing.checks import Checks
from swift.testing.layouts import Layout
from swift.testing.trials import Trials


@dataclass(frozen=True)
class CheckResult:
    """Result of one check."""

    about: str
    problem: str
    """Empty when all is well."""


def short_form(backend: str, processes: int) -> Iterator[CheckResult]:
    """Check by check, as they are made; takes a minute or less."""
    layout = Layout(processes)
    with TemporaryDirectory(prefix="swift-testing-") as folder:
        checks = Checks(Trials(backend, Path(folder)), [layout])
        plain, accumulated = BY_NAME["clipped"], BY_NAME["accumulated"]
        for case in (plain, accumulated):
            checks.announce("trajectory", layout, case)
        checks.announce("resume", layout, plain)
        checks.announce("all_processes_end_alike", layout)
        steps: dict[str, Callable[[], None]] = {
            "hooks, options and capabilities": lambda: checks.contract(),
            "the plugin is imported without torch": lambda: checks.light_import(),
            "what it does not claim is refused": lambda: checks.refuses_what_it_does_not_claim(),
            f"loss and gradient norm of {STEPS} steps": lambda: checks.trajectory(plain, layout),
            "the same, with accumulation": lambda: checks.trajectory(accumulated, layout),
            "evaluation": lambda: checks.evaluation(plain, layout),
            "weights and their names": lambda: checks.weights(plain, layout),
            "one tensor at a time": lambda: checks.one_tensor_at_a_time(plain, layout),
            "nothing is left behind": lambda: checks.nothing_is_left_behind(plain, layout),
            "saved and resumed": lambda: checks.resume(plain, layout),
            "all processes end alike": lambda: checks.all_processes_end_alike(layout),
        }
        for about, check in steps.items():
            try:
                check()
            except AssertionError as problem:
                yield CheckResult(about, str(problem))
            else:
                yield CheckResult(about, "")

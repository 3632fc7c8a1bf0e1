"""The kit proves itself: each of these deliberately broken backends is caught by the check that is there for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from broken_backends import BROKEN, CAUGHT_BY, HANGING
from kit_cases import ALL_CASES
from tiers import tiered

from swift_testing import BackendConformance, Layout, crew
from swift_testing.cases import BY_NAME, DROPOUT, LORA_DROPOUT
from swift_testing.checks import Checks
from swift_testing.trials import Trials

FIRST_OF_EACH = {check: name for name, (check, _) in reversed(CAUGHT_BY.items())}.values()
"""One backend for each check that catches any."""
NAMED = {case.name: case for case in (*ALL_CASES, DROPOUT, LORA_DROPOUT)}
TWO = Layout(2)
PLAN = Layout(2, {"dp_replicate": 2})


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A distribution with all of them as its entry points."""
    site = tmp_path_factory.mktemp("broken")
    info = site / "broken_backends-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: broken-backends\nVersion: 1.0\nRequires-Dist: swift-core>=0.1\n"
    )
    points = (f"{name} = broken_backends:{backend.__name__}\n" for name, backend in BROKEN.items())
    (info / "entry_points.txt").write_text("[swift.backends]\n" + "".join(points))
    sys.path.insert(0, str(site))
    yield
    sys.path.remove(str(site))


@pytest.mark.parametrize("name", tiered(BROKEN, FIRST_OF_EACH))
def test_a_broken_backend_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in HANGING:
        monkeypatch.setattr(crew, "GRACE", 3.0)
    checks = Checks(Trials(name, tmp_path, cases=ALL_CASES), [TWO])
    check, case = CAUGHT_BY[name]
    arguments: tuple[Any, ...] = () if case is None else (NAMED[case], TWO)
    if check == "refuses_other_world":
        arguments = (PLAN,)
    elif check in ("all_processes_end_alike", "two_roles"):
        arguments = (TWO,)
    elif check == "time_breakdown":
        arguments = ()
    elif check == "two_roles_resumed":
        arguments = (TWO, TWO)
    elif check == "resume_in_other_layout":
        arguments = (BY_NAME["clipped"], Layout(1), TWO)
    with pytest.raises(AssertionError) as caught:
        getattr(checks, check)(*arguments)
    # Caught by what it does, not by an error of its own.
    assert not any(error in str(caught.value) for error in ("TypeError", "AttributeError", "NameError"))


def test_a_standard_test_cannot_be_replaced_without_a_reason() -> None:
    with pytest.raises(TypeError, match="replaces the standard test test_weights without a reason"):

        class Sly(BackendConformance):
            backend = "torch"

            def test_weights(self) -> None:  # type: ignore[override]
                pass

    with pytest.raises(TypeError, match="no standard test test_wieghts"):

        class Sloppy(BackendConformance):
            backend = "torch"
            deviations: ClassVar = {"test_wieghts": "not today"}

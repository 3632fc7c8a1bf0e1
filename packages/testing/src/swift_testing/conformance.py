"""The conformance kit as a class of tests: subclass it, name the backend and its layouts, run pytest.

from swift_testing import BackendConformance, Layout

class TestMine(BackendConformance):
    backend = "mine"
    layouts = (Layout(2), Layout(4, {"tp": 2}))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from swift.contracts import Capabilities
from swift.plugins import load_plugin
from swift_testing.cases import BY_NAME, CASES, DROPOUT, LORA_DROPOUT, RESUMED, Case
from swift_testing.checks import EXPERTS, PARALLEL, Checks
from swift_testing.images import SEEING
from swift_testing.layouts import Layout
from swift_testing.subjects import Subject
from swift_testing.trials import Trials

__tracebackhide__ = True  # pytest shows the sentence alone

CASES_OF_TESTS: Mapping[str, Callable[[Sequence[Case]], Iterable[Case]]] = {
    "case": lambda cases: cases,
    "resumed": lambda cases: (case for case in cases if case.name in RESUMED),
    "about_tokens": lambda cases: (case for case in cases if case.tokens),
    "dropout": lambda _: [DROPOUT],
    "evaluated": lambda _: [LORA_DROPOUT],
    "changing": lambda cases: (case for case in cases if case.notes_changes),
}
"""Parameter of a test → the cases that it is made for."""


class BackendConformance:
    """Everything that a backend promises, tried on real processes against a plain reference."""

    backend: ClassVar[str]
    """The name that users type, of a plugin that is installed."""
    layouts: ClassVar[Sequence[Layout]] = (Layout(2),)
    """Every dimension of `capabilities.parallel` must be in one of them, but for those of experts."""
    dimensions: ClassVar[frozenset[str]] = frozenset(PARALLEL) - EXPERTS
    """Of which those that the backend claims must be in one of the layouts."""
    refused: ClassVar[Sequence[Layout]] = ()
    """Plans within the claimed dimensions that this backend refuses all the same."""
    environment: ClassVar[Mapping[str, str]] = {}
    """Variables for the processes."""
    preload: ClassVar[Sequence[str]] = ()
    """Modules to import once, before processes are forked."""
    fresh_processes: ClassVar[bool] = False
    """Give every run processes of its own, for engines with state that outlives a run."""
    blocks: ClassVar[int] = 2
    """Of the model that is trained: as many as the longest pipeline has stages."""
    architecture: ClassVar[str] = "Qwen3"
    """Of the model that is trained, as transformers names it."""
    shape: ClassVar[Mapping[str, Any]] = {}
    """Other keys of its configuration."""
    seeing: ClassVar[str] = SEEING
    """Of the model that is trained on images: 'Qwen2_5_VL', or 'Qwen3VL', which passes more to its first layers."""
    cases: ClassVar[Sequence[Case]] = CASES
    """The trainings that it is tried with. Plugins have more: `cases = (*CASES, *swift_rl.testing.CASES)`."""
    deviations: ClassVar[Mapping[str, str]] = {}
    """Test → why this backend replaces or leaves it out. The reason is shown; without one nothing can be replaced."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        standard = {name for name in vars(BackendConformance) if name.startswith("test_")}
        for name in sorted(standard & set(vars(cls))):
            if not cls.deviations.get(name, "").strip():
                raise TypeError(
                    f"{cls.__name__} replaces the standard test {name} without a reason. "
                    f'Say why: deviations = {{"{name}": "..."}}'
                )
        if unknown := set(cls.deviations) - standard:
            raise TypeError(f"{cls.__name__}: there is no standard test {', '.join(sorted(unknown))}")

    def test_contract(self, checks: Checks) -> None:
        checks.contract()

    def test_light_import(self, checks: Checks) -> None:
        checks.light_import()

    def test_every_claim_is_tried(self, checks: Checks) -> None:
        checks.claims_are_tried(self.dimensions)

    def test_refuses_what_it_does_not_claim(self, checks: Checks) -> None:
        checks.refuses_what_it_does_not_claim()

    def test_refuses_unsupported_layouts(self, checks: Checks) -> None:
        for layout in self.refused:
            checks.refuses(layout)

    def test_refuses_another_number_of_processes(self, checks: Checks, layout: Layout) -> None:
        checks.refuses_other_world(layout)

    def test_refuses_cases_left_out(self, checks: Checks, layout: Layout) -> None:
        checks.refuses_cases_left_out(layout)
        checks.refuses_media(layout)

    def test_trajectory(self, checks: Checks, layout: Layout, case: Case) -> None:
        checks.trajectory(case, layout)

    def test_processes_agree(self, checks: Checks, layout: Layout, case: Case) -> None:
        checks.processes_agree(case, layout)

    def test_evaluation(self, checks: Checks, layout: Layout, case: Case) -> None:
        checks.evaluation(case, layout)

    def test_evaluation_without_dropout(self, checks: Checks, layout: Layout, evaluated: Case) -> None:
        checks.evaluation_without_dropout(evaluated, layout)

    def test_token_results(self, checks: Checks, layout: Layout, about_tokens: Case) -> None:
        checks.token_results(about_tokens, layout)

    def test_first_pass(self, checks: Checks, layout: Layout, dropout: Case) -> None:
        checks.first_pass(dropout, layout)

    def test_weights(self, checks: Checks, layout: Layout, case: Case) -> None:
        checks.weights(case, layout)

    def test_which_weights_change(self, checks: Checks, layout: Layout, changing: Case) -> None:
        checks.changes(changing, layout)

    def test_one_tensor_at_a_time(self, checks: Checks, layout: Layout) -> None:
        checks.one_tensor_at_a_time(BY_NAME["clipped"], layout)

    def test_nothing_is_left_behind(self, checks: Checks, layout: Layout) -> None:
        checks.nothing_is_left_behind(BY_NAME["clipped"], layout)

    def test_all_processes_end_alike(self, checks: Checks, layout: Layout) -> None:
        checks.all_processes_end_alike(layout)

    def test_time_breakdown(self, checks: Checks) -> None:
        checks.time_breakdown()

    def test_resume(self, checks: Checks, layout: Layout, resumed: Case) -> None:
        checks.resume(resumed, layout)

    def test_resume_in_other_layout(self, checks: Checks, layout: Layout, reads: Layout) -> None:
        checks.resume_in_other_layout(BY_NAME["clipped"], layout, reads)

    def test_two_roles(self, checks: Checks, layout: Layout) -> None:
        if checks.trials.capabilities.roles == 1:
            checks.refuses_more_roles(layout)
            return
        checks.two_roles(layout)
        checks.two_roles_resumed(layout, layout)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Which layouts and cases each test is made for."""
        cases = next((name for name in CASES_OF_TESTS if name in metafunc.fixturenames), None)
        if cases is not None:
            metafunc.parametrize(("layout", cases), self._claimed(CASES_OF_TESTS[cases](self.cases)))
        elif "reads" in metafunc.fixturenames:
            pairs = [pytest.param(one, other, id=f"{one}-to-{other}") for one, other in self._resumes()]
            metafunc.parametrize(("layout", "reads"), pairs or [_NONE])
        elif "layout" in metafunc.fixturenames:
            metafunc.parametrize("layout", [pytest.param(layout, id=str(layout)) for layout in self.layouts])

    def _resumes(self) -> list[tuple[Layout, Layout]]:
        """Return pairs of layouts: the one that saves, and the one that resumes.

        Every full layout resumes after every other; those with a part of the cases form a ring, from the first layout
        over each of them back to the first.
        """
        whole = [layout for layout in self.layouts if layout.cases is None]
        parts = [layout for layout in self.layouts if layout.cases is not None and layout is not self.layouts[0]]
        round_trip = [self.layouts[0], *parts, self.layouts[0]] if parts else []
        return [(one, other) for one in whole for other in whole if one is not other] + list(pairwise(round_trip))

    def _claimed(self, cases: Iterable[Case]) -> list[Any]:
        capabilities = load_plugin("swift.backends", self.backend).capabilities
        shown = [case for case in cases if case.applies_to(capabilities) or case.missing(capabilities)]
        tried = [
            pytest.param(layout, case, id=f"{layout}-{case.name}", marks=_left_out(case, capabilities))
            for layout in self.layouts
            for case in shown
            if layout.tries(case.name) and case.fits(layout) and not case.kept_whole(capabilities, layout)
        ]
        return tried or [_NONE]

    @pytest.fixture(scope="class")
    @classmethod
    def checks(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checks:
        """Return the trials of this class, made when a test asks for them."""
        folder = tmp_path_factory.mktemp(cls.__name__)
        environment = dict(cls.environment)
        trials = Trials(
            cls.backend,
            folder,
            environment=environment,
            preload=cls.preload,
            fresh=cls.fresh_processes,
            subject=Subject(cls.architecture, cls.blocks, tuple(cls.shape.items())),
            seeing=cls.seeing,
            cases=cls.cases,
        )
        checks = Checks(trials, cls.layouts)
        for test, parameters in _selected(cls, request.session.items):
            case = next((parameters[name] for name in CASES_OF_TESTS if name in parameters), None)
            layout = parameters.get("layout", cls.layouts[0])
            checks.announce(test.removeprefix("test_"), layout, case, parameters.get("reads"))
        return checks

    @pytest.fixture(autouse=True)
    def _stated_deviation(self, request: pytest.FixtureRequest) -> None:
        name = request.node.originalname
        replaced = name in vars(type(self)) and vars(type(self))[name] is not None
        if name in self.deviations and not replaced:
            pytest.skip(f"left out by {type(self).__name__}: {self.deviations[name]}")


class ExpertConformance(BackendConformance):
    """The same of a mixture of experts, in layouts with expert parallel; skipped for a backend without it."""

    architecture = "Qwen3Moe"
    shape: ClassVar = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
    layouts = (Layout(2, {"ep": 2}),)
    dimensions: ClassVar = EXPERTS

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _has_expert_parallel(cls) -> None:
        if "ep" not in load_plugin("swift.backends", cls.backend).capabilities.parallel:
            pytest.skip("capabilities.parallel lacks ep")


_NONE = pytest.param(None, None, id="none", marks=pytest.mark.skip(reason="no layout here has such a case"))
"""For tests that a backend's layouts leave without values."""


def _left_out(case: Case, capabilities: Capabilities) -> Sequence[pytest.MarkDecorator]:
    """Return the reason why a case is left out, to be shown: views that the backend does not claim."""
    missing = ", ".join(f"Need.{need.name}" for need in sorted(case.missing(capabilities)))
    return [pytest.mark.skip(reason=f"capabilities.provides lacks {missing}")] if missing else []


def _selected(kit: type, items: Iterable[pytest.Item]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tests of one class that pytest is going to run, each with its parameters."""
    for item in items:
        if isinstance(item, pytest.Function) and item.cls is kit and not item.get_closest_marker("skip"):
            yield item.originalname, item.callspec.params if hasattr(item, "callspec") else {}

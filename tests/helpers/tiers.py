"""Which tests wait for `make test-all` or `make conformance`, and how tests are dealt out to several processes.

`make test` runs what has neither the marker `full` nor `rare`, `make test-all` what is not `rare`, in one run, and
`make conformance` what is: further variants of things that the others have tried. Most get a marker by hand; those of
the conformance kit get theirs here, from their layout and case, and `tiered` gives both to values of a parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

LONGEST_FIRST = (
    "tests/backend_megatron/test_megatron_conformance.py",
    "tests/backend_deepspeed/test_deepspeed_conformance.py",
    "tests/backend_fsdp/test_fsdp_conformance.py",
    "tests/export_vllm/",
    "tests/packaging/",
    "tests/backend_",
    "tests/engines/test_matrix.py",
    "tests/tuning/",
    "tests/rl/",
    "tests/malformed/test_data_rows.py",
    "tests/core/train/test_crash_safety.py",
    "tests/ui/test_flows.py",
    "tests/docs/",
    "tests/malformed/",
    "tests/engines/",
    "tests/core/processes/",
)
"""Beginnings of names: what takes minutes is begun first, so that one process does not go on alone in the end."""

TOGETHER = {
    "tests/packaging/": "packaging",
    "tests/export_vllm/test_quantise.py": "trained",
    "tests/export_vllm/test_export_vllm.py": "trained",
}
"""What shares something that takes long to make: the wheels of all packages, a model that was trained."""

QUICK_CASES = {
    "clipped",
    "accumulated",
    "packed",
    "lora",
    "dpo, lora",
    "reward",
    "negatives",
    "tokens",
    "grpo on stored rounds",
}
OF_THE_PLAINEST = {"test_one_tensor_at_a_time", "test_nothing_is_left_behind"}
"""Checks that are made on the run of the plainest case."""

APART = ("tests/export_vllm/test_end_to_end.py", "tests/export_vllm/test_quantise_memory.py", "tests/core/processes/")
"""Files whose tests share nothing that takes long."""


def tiered(values: Iterable[Any], quick: Collection[Any], rare: Collection[Any] = ()) -> list[Any]:
    """Returns values to parametrise a test with: all but the quick ones wait for `make test-all`, the rare ones longer.

    Of a test that waits as a whole, none is quick.
    """
    known = list(values)
    if unknown := {*quick, *rare} - {*known}:
        raise ValueError(f"not among the values: {unknown}")
    return [pytest.param(each, marks=_marks(each in quick, each in rare)) for each in known]


def _marks(quick: bool, rare: bool) -> Sequence[pytest.MarkDecorator]:
    return (pytest.mark.rare,) if rare else () if quick else (pytest.mark.full,)


def selected(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """Returns the values of a parameter that the tests of this file will be run with, for what is made for all of them
    at once.
    """
    parameters = [item.callspec.params for item in request.session.items if _is_parametrised(item, request)]
    return list(dict.fromkeys(each[parameter] for each in parameters if parameter in each))


def _is_parametrised(item: pytest.Item, request: pytest.FixtureRequest) -> bool:
    return item.path == request.path and hasattr(item, "callspec")


class Groups(LoadScopeScheduling):
    """Deals out tests by class or file, except as said above, in the order of `longest_first`.

    xdist's own marker for groups has no effect under pytest 9.2: it writes them into an attribute that is not read.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # which would begin with what has the most tests
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        for beginning, group in TOGETHER.items():
            if nodeid.startswith(beginning):
                return group
        return nodeid if nodeid.startswith(APART) else nodeid.partition("[")[0].rpartition("::")[0]


def longest_first(item: pytest.Item) -> int:
    """Returns what to sort by."""
    return next((at for at, each in enumerate(LONGEST_FIRST) if item.nodeid.startswith(each)), len(LONGEST_FIRST))


def is_rare(item: pytest.Item) -> bool:
    """Whether a test of the conformance kit trains two models in a layout beyond a backend's first.

    A second model is sharded by the code that shards the first, which each layout is tried with.
    """
    layouts = getattr(getattr(item, "cls", None), "layouts", ())
    if getattr(item, "originalname", None) != "test_two_roles" or not hasattr(item, "callspec"):
        return False
    return item.callspec.params["layout"] not in layouts[:1]


def is_full(item: pytest.Item) -> bool:
    """Whether a test of the conformance kit tries a layout or case that only the whole run needs.

    The first layout of a backend is tried with several cases; the second, which combines several dimensions, with the
    plainest, and with what the first has saved.
    """
    layouts = getattr(getattr(item, "cls", None), "layouts", ())
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if "layout" not in parameters or not layouts:
        return False
    layout, first, second = parameters["layout"], *(*layouts, None)[:2]
    if "reads" in parameters:
        return not (layout is first and parameters["reads"] is second)
    case = next((parameters[name] for name in ("case", "dropout", "evaluated", "changing") if name in parameters), None)
    if layout is first:
        return case is not None and case.name not in QUICK_CASES
    if case is not None:
        return not (layout is second and case.name == "clipped")
    return not (layout is second and item.originalname in OF_THE_PLAINEST)

"""Conformance kits for backends and engines. They need `pip install "swift-core[testing]"`.

    class TestMine(BackendConformance):
        backend = "mine"
        layouts = (Layout(2), Layout(4))

    class TestMyEngine(EngineConformance):
        engine = "mine"

A test of one's own looks on while a run trains:

    with open_job(config_from_mapping({"backend.name": "mine", ...}), rows=rows) as job:
        for record in Loop(job).steps():
            ...

`swift plugins --try mine` runs a short form of the first, without pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swift.testing.layouts import Layout

if TYPE_CHECKING:
    from swift.testing.conformance import BackendConformance
    from swift.testing.engine_conformance import EngineConformance
    from swift.train.loop import Loop
    from swift.train.prepare import open_job

__all__ = ["BackendConformance", "EngineConformance", "Layout", "Loop", "open_job"]


def __getattr__(name: str) -> Any:
    # pytest is needed for the classes alone, and is not installed with core.
    if name == "BackendConformance":
        from swift.testing.conformance import BackendConformance

        return BackendConformance
    if name == "EngineConformance":
        from swift.testing.engine_conformance import EngineConformance

        return EngineConformance
    if name == "Loop":
        from swift.train.loop import Loop

        return Loop
    if name == "open_job":
        from swift.train.prepare import open_job

        return open_job
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

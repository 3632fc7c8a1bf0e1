"""Conformance kits for backends, engines and exporters. They need `pip install "swift-core[testing]"`.

    class TestMine(BackendConformance):
        backend = "mine"
        layouts = (Layout(2), Layout(4))

    class TestMyEngine(EngineConformance):
        engine = "mine"

    class TestMyExporter(ExporterConformance):
        exporter = "mine"

A test of one's own looks on while a run trains:

    with open_job(config_from_mapping({"backend.name": "mine", ...}), rows=rows) as job:
        for record in Loop(job).steps():
            ...

`swift plugins --try mine` runs a short form of the first, without pytest.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from swift.testing.layouts import Layout

# MKL's own allocator keeps a list by thread, around which a process that is forked later may run for ever.
os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")

if TYPE_CHECKING:
    from swift.testing.cases import CASES, Case
    from swift.testing.conformance import BackendConformance
    from swift.testing.engine_conformance import EngineConformance
    from swift.testing.exporter_conformance import ExporterConformance
    from swift.testing.reference import Expected, Recipe, run_reference
    from swift.train.loop import Loop
    from swift.train.prepare import open_job

__all__ = [
    "CASES",
    "BackendConformance",
    "Case",
    "EngineConformance",
    "Expected",
    "ExporterConformance",
    "Layout",
    "Loop",
    "Recipe",
    "open_job",
    "run_reference",
]

_MODULES = {
    "CASES": "swift.testing.cases",
    "BackendConformance": "swift.testing.conformance",
    "Case": "swift.testing.cases",
    "EngineConformance": "swift.testing.engine_conformance",
    "Expected": "swift.testing.reference",
    "ExporterConformance": "swift.testing.exporter_conformance",
    "Loop": "swift.train.loop",
    "Recipe": "swift.testing.reference",
    "open_job": "swift.train.prepare",
    "run_reference": "swift.testing.reference",
}


def __getattr__(name: str) -> Any:
    # pytest is needed for the classes alone, and is not installed with core.
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

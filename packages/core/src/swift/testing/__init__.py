"""How anyone knows that a backend or an engine is right: the conformance kits. They need
`pip install "swift-core[testing]"`.

    class TestMine(BackendConformance):
        backend = "mine"
        layouts = (Layout(2), Layout(4))

    class TestMyEngine(EngineConformance):
        engine = "mine"

`swift plugins --try mine` runs a short form of the first, without pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swift.testing.layouts import Layout

if TYPE_CHECKING:
    from swift.testing.conformance import BackendConformance
    from swift.testing.engine_conformance import EngineConformance

__all__ = ["BackendConformance", "EngineConformance", "Layout"]


def __getattr__(name: str) -> Any:
    # pytest is needed for the classes alone, and is not installed with core.
    if name == "BackendConformance":
        from swift.testing.conformance import BackendConformance

        return BackendConformance
    if name == "EngineConformance":
        from swift.testing.engine_conformance import EngineConformance

        return EngineConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

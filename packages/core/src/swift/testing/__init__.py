"""How anyone knows that a backend is right: the conformance kit. Needs `pip install "swift-core[testing]"`.

    class TestMine(BackendConformance):
        backend = "mine"
        layouts = (Layout(2), Layout(4))

`swift plugins --try mine` runs a short form of it, without pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swift.testing.layouts import Layout

if TYPE_CHECKING:
    from swift.testing.conformance import BackendConformance

__all__ = ["BackendConformance", "Layout"]


def __getattr__(name: str) -> Any:
    # pytest is needed for the class alone, and is not installed with core.
    if name != "BackendConformance":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from swift.testing.conformance import BackendConformance

    return BackendConformance

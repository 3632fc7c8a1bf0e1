"""How anyone knows that a backend is right: the conformance kit. Needs `pip install "swift-core[testing]"`.

class TestMine(BackendConformance):
    backend = "mine"
    layouts = (Layout(2), Layout(4))
"""

from __future__ import annotations

from swift.testing.conformance import BackendConformance
from swift.testing.layouts import Layout

__all__ = ["BackendConformance", "Layout"]

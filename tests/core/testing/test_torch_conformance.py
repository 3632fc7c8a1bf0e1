"""The built-in backend passes the conformance kit."""

from __future__ import annotations

from swift.testing import BackendConformance, Layout


class TestTorch(BackendConformance):
    backend = "torch"
    layouts = (Layout(1), Layout(2), Layout(4, {"dp_replicate": 4}))

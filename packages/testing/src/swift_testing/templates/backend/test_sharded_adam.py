"""The conformance kit, on two and on four processes."""

from swift_testing import BackendConformance, Layout


class TestShardedAdam(BackendConformance):
    backend = "sharded-adam"
    layouts = (Layout(2, {"dp_replicate": 2}), Layout(4, {"dp_replicate": 4}))

"""FSDP2 in all its layouts, against the conformance kit."""

from __future__ import annotations

from swift.testing import BackendConformance, Layout


class TestFsdp(BackendConformance):
    backend = "fsdp"
    preload = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "swift_backend_fsdp.shard")
    layouts = (
        Layout(2, {"dp_shard": 2}),
        Layout(4, {"dp_shard": 4}),
        Layout(4, {"dp_replicate": 2, "dp_shard": 2}),
        Layout(2, {"tp": 2}, without=frozenset({"dora"})),
        Layout(4, {"tp": 2, "dp_shard": 2}, without=frozenset({"dora"})),
        Layout(2, {"ulysses": 2}),
        Layout(2, {"cp": 2}),
        Layout(4, {"cp": 2, "dp_shard": 2}),
        Layout(2, {"dp_shard": 2}, {"backend.offload": True}),
    )

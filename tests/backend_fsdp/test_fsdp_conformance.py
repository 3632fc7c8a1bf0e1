"""FSDP2 in all its layouts, against the conformance kit.

Layouts that combine what others try alone are tried with a covering part of the cases; `make conformance` tries all.
"""

from __future__ import annotations

import os

from swift.testing import BackendConformance, Layout

COVERING = (
    None if os.environ.get("SWIFT_WHOLE_KIT") else frozenset({"clipped", "accumulated", "packed", "lora", "dpo, lora"})
)
NO_DORA = frozenset({"dora"})


class TestFsdp(BackendConformance):
    backend = "fsdp"
    preload = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "swift_backend_fsdp.shard")
    layouts = (
        Layout(2, {"dp_shard": 2}),
        Layout(4, {"dp_shard": 4}, cases=COVERING),
        Layout(4, {"dp_replicate": 2, "dp_shard": 2}, cases=COVERING),
        Layout(2, {"tp": 2}, without=NO_DORA),
        Layout(4, {"tp": 2, "dp_shard": 2}, cases=COVERING, without=NO_DORA),
        Layout(2, {"ulysses": 2}),
        Layout(2, {"cp": 2}),
        Layout(4, {"cp": 2, "dp_shard": 2}, cases=COVERING),
        Layout(2, {"dp_shard": 2}, {"backend.offload": True}, cases=COVERING),
    )

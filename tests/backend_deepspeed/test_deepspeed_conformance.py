"""DeepSpeed under all stages and layouts, against the conformance kit.

Layouts that combine what others try alone are tried with a covering part of the cases; `make conformance` tries all.
"""

from __future__ import annotations

import os
from typing import ClassVar

from swift.testing import BackendConformance, Layout

COVERING = (
    None if os.environ.get("SWIFT_WHOLE_KIT") else frozenset({"clipped", "accumulated", "packed", "lora", "dpo, lora"})
)


def zero(preset: str) -> dict[str, str]:
    return {"backend.config": preset}


class TestDeepSpeed(BackendConformance):
    backend = "deepspeed"
    fresh_processes = True
    environment: ClassVar = {"DS_ACCELERATOR": "cpu"}
    preload = ("deepspeed", "swift_backend_deepspeed.shard")
    layouts = (
        Layout(2, {"dp_shard": 2}, zero("zero2")),
        Layout(2, {"dp_replicate": 2}, zero("zero0")),
        Layout(2, {"dp_shard": 2}, zero("zero1"), cases=COVERING),
        Layout(2, {"dp_shard": 2}, zero("zero3")),
        Layout(4, {"dp_shard": 4}, zero("zero3"), cases=COVERING),
        Layout(2, {"dp_shard": 2}, zero("zero2_offload"), cases=COVERING),
        Layout(2, {"dp_shard": 2}, zero("zero3_offload"), cases=COVERING),
        Layout(2, {"ulysses": 2}, zero("zero3")),
        Layout(4, {"ulysses": 2, "dp_shard": 2}, zero("zero3"), cases=COVERING),
    )

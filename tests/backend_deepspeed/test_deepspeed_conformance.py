"""DeepSpeed under all stages and layouts, against the conformance kit; `make conformance` tries every case in each."""

from __future__ import annotations

import tempfile
from typing import ClassVar

from kit_cases import ALL_CASES, MIXED_IMAGES, all_of_text, chosen, more

from swift_testing import BackendConformance, Layout

NOT_CUT = frozenset({"dora"})
"""What AutoTP cannot cut."""
NVME = {
    "zero_optimization": {
        "stage": 3,
        "sub_group_size": 40_000,
        "offload_optimizer": {"device": "nvme", "nvme_path": tempfile.gettempdir()},
    },
    "aio": {"block_size": 4096},
}
"""In several groups, so that most of them are on the disk at any time."""


def zero(preset: str) -> dict[str, str]:
    return {"backend.config": preset}


class TestDeepSpeed(BackendConformance):
    backend = "deepspeed"
    cases = ALL_CASES
    environment: ClassVar = {"DS_ACCELERATOR": "cpu"}
    preload = (
        "deepspeed",
        "deepspeed.module_inject.auto_ep_config",
        "deepspeed.module_inject.auto_ep_layer",
        "deepspeed.runtime.zero.muon.muon_optimizer",
        "small_swaps",
        "swift_backend_deepspeed.shard",
    )
    layouts = (
        Layout(2, {"dp_shard": 2}, zero("zero3"), cases=all_of_text(MIXED_IMAGES)),
        Layout(
            4,
            {"tp": 2, "dp_shard": 2},
            zero("zero2"),
            cases=chosen("packed", "dpo, lora"),
            without=NOT_CUT,
        ),
        Layout(2, {"dp_replicate": 2}, zero("zero0"), cases=chosen("accumulated")),
        Layout(2, {"dp_shard": 2}, zero("zero1"), cases=chosen("float16", "value")),
        Layout(
            2,
            {"dp_shard": 2},
            zero("zero2"),
            cases=chosen("clipped hard, tied", "accumulated", "lora", "bfloat16", "negatives"),
        ),
        *more(Layout(4, {"dp_shard": 4}, zero("zero3"))),
        Layout(2, {"dp_shard": 2}, zero("zero2_offload"), cases=chosen("accumulated")),
        Layout(2, {"dp_shard": 2}, zero("zero3_offload"), cases=chosen("dpo, lora", "bfloat16")),
        Layout(2, {"dp_shard": 2}, {"backend.config": NVME}, "nvme", cases=chosen("accumulated", "lora")),
        Layout(
            2,
            {"ulysses": 2},
            zero("zero3"),
            cases=chosen(
                "packed", "checkpointed", "dpo, lora", "reward", "embedding", "negatives, lora, packed", "tokens"
            ),
        ),
        Layout(4, {"ulysses": 2, "dp_shard": 2}, zero("zero3"), cases=chosen("packed")),
        Layout(2, {"tp": 2}, zero("zero1"), cases=chosen("clipped hard, tied"), without=NOT_CUT),
    )

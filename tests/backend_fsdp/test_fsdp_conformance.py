"""FSDP2 in all its layouts, against the conformance kit; `make conformance` tries every case in each."""

from __future__ import annotations

from kit_cases import (
    ALL_CASES,
    HEADED_LORA,
    MIXED_IMAGES,
    NEGATIVES_LORA,
    OF_TEXT,
    OTHER_OPTIMIZER,
    VIT,
    all_of_text,
    chosen,
    more,
)

from swift_testing import BackendConformance, ExpertConformance, Layout

NO_DORA = frozenset({"dora"})


class TestFsdp(BackendConformance):
    backend = "fsdp"
    cases = ALL_CASES
    preload = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "swift_backend_fsdp.shard")
    layouts = (
        Layout(2, {"dp_shard": 2}, cases=all_of_text(MIXED_IMAGES)),
        Layout(
            4,
            {"tp": 2, "dp_shard": 2},
            cases=chosen("packed", "dpo, lora", "negatives"),
            without=NO_DORA,
        ),
        *more(Layout(4, {"dp_shard": 4})),
        Layout(4, {"dp_replicate": 2, "dp_shard": 2}, cases=chosen()),
        Layout(
            2,
            {"tp": 2},
            cases=chosen("clipped hard, tied", "checkpointed", HEADED_LORA, "bfloat16"),
            without=NO_DORA,
        ),
        Layout(2, {"ulysses": 2}, cases=chosen("packed", "checkpointed", "dpo, lora", "reward", "tokens", VIT)),
        Layout(2, {"cp": 2}, cases=chosen("packed", "bfloat16", HEADED_LORA, "embedding", NEGATIVES_LORA, "tokens")),
        Layout(4, {"cp": 2, "dp_shard": 2}, cases=chosen("packed")),
        Layout(
            2,
            {"dp_shard": 2},
            {"backend.offload": True, "backend.reduce": "micro_batch"},
            cases=chosen("accumulated", "lora"),
        ),
    )


class TestFsdpExperts(ExpertConformance):
    backend = "fsdp"
    cases = OF_TEXT
    preload = TestFsdp.preload
    layouts = (
        Layout(
            2,
            {"ep": 2},
            cases=chosen("accumulated", "packed", "checkpointed", "dpo, lora", "reward", OTHER_OPTIMIZER, "bfloat16"),
        ),
        Layout(4, {"ep": 2, "dp_shard": 4}, cases=chosen("accumulated")),
        Layout(4, {"ep": 2, "dp_replicate": 2, "dp_shard": 2}, cases=chosen()),
        Layout(2, {"ep": 2, "cp": 2}, cases=chosen("packed")),
        Layout(
            2,
            {"ep": 2},
            {"backend.offload": True, "backend.reduce": "micro_batch"},
            cases=chosen("accumulated", "lora"),
        ),
    )

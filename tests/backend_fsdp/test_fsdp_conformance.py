"""FSDP2 in all its layouts, against the conformance kit; `make conformance` tries every case in each."""

from __future__ import annotations

from kit_cases import ALL_CASES, GKD, GRPO, MIXED_IMAGES, VIT, all_of_text, chosen, combined, more

from swift.testing import BackendConformance, Layout

NO_DORA = frozenset({"dora"})
HEADED_LORA = "seq_cls, lora, packed"
NEGATIVES_LORA = "negatives, lora, packed"


class TestFsdp(BackendConformance):
    backend = "fsdp"
    cases = ALL_CASES
    preload = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "swift_backend_fsdp.shard")
    layouts = (
        Layout(2, {"dp_shard": 2}, cases=all_of_text(MIXED_IMAGES)),
        Layout(
            4,
            {"tp": 2, "dp_shard": 2},
            cases=combined("packed", "dpo, lora", "negatives"),
            without=NO_DORA,
        ),
        *more(Layout(4, {"dp_shard": 4})),
        Layout(4, {"dp_replicate": 2, "dp_shard": 2}, cases=combined("dpo, lora")),
        Layout(
            2,
            {"tp": 2},
            cases=chosen("clipped hard, tied", "accumulated", "checkpointed", "lora", HEADED_LORA, "bfloat16"),
            without=NO_DORA,
        ),
        Layout(2, {"ulysses": 2}, cases=chosen("packed", "checkpointed", "dpo, lora", "reward", "value", GRPO, VIT)),
        Layout(2, {"cp": 2}, cases=chosen("packed", "lora", "bfloat16", HEADED_LORA, "embedding", NEGATIVES_LORA, GKD)),
        Layout(4, {"cp": 2, "dp_shard": 2}, cases=combined("packed")),
        Layout(
            2,
            {"dp_shard": 2},
            {"backend.offload": True, "backend.reduce": "micro_batch"},
            cases=chosen("accumulated", "lora", "reward"),
        ),
    )

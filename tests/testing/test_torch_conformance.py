"""The built-in backend passes the conformance kit."""

from __future__ import annotations

from kit_cases import ALL_CASES, MIXED_IMAGES, NEGATIVES_LORA, TWO_KINDS, all_of_text, chosen

from swift_testing import BackendConformance, Layout


class TestTorch(BackendConformance):
    backend = "torch"
    cases = ALL_CASES
    layouts = (
        Layout(2, cases=all_of_text(MIXED_IMAGES, TWO_KINDS)),
        Layout(4, {"dp_replicate": 4}, cases=chosen("packed", "negatives")),
        Layout(1, cases=chosen("accumulated", "dpo, lora", "value", NEGATIVES_LORA)),
    )

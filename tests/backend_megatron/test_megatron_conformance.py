"""Megatron in all its layouts, against the conformance kit; `make conformance` tries every case in each."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from kit_cases import ALL_CASES, ENCODERS, HEADED_LORA, IMAGES_LORA, OF_TEXT, OTHER_OPTIMIZER, VIT, all_of_text, chosen

from swift.plugins.load import load_backend
from swift_testing import BackendConformance, ExpertConformance, Layout
from swift_testing.cases import BY_NAME
from swift_testing.checks import Checks
from swift_testing.subjects import Subject
from swift_testing.trials import Trials

OVERLAP = {"backend.overlap": True}
PLAIN = {"backend.use_distributed_optimizer": False}


class TestMegatron(BackendConformance):
    """Of a dense model."""

    backend = "megatron"
    cases = ALL_CASES
    preload = ("megatron_imported",)
    deviations: ClassVar = {"test_every_claim_is_tried": "stages and experts have classes of their own"}
    layouts = (
        Layout(2, {"tp": 2}, cases=all_of_text(IMAGES_LORA)),
        Layout(
            4,
            {"tp": 2, "pp": 2, "sequence_parallel": True},
            cases=chosen("clipped hard, tied", "dpo, lora", HEADED_LORA, "tokens"),
        ),
        Layout(2, {"tp": 2, "sequence_parallel": True}, cases=chosen("checkpointed", "packed", "lora")),
        Layout(
            2,
            {"dp_shard": 2},
            cases=chosen("accumulated", OTHER_OPTIMIZER, "lora", "bfloat16", "float16"),
            without=ENCODERS,
        ),
        Layout(2, {"dp_shard": 2}, OVERLAP, "overlapped", cases=chosen("accumulated"), without=ENCODERS),
        Layout(2, {"dp_replicate": 2}, PLAIN, cases=chosen("bfloat16"), without=ENCODERS),
        Layout(
            2,
            {"cp": 2},
            cases=chosen(
                *("checkpointed", "dpo, lora", "value", "embedding", "negatives", HEADED_LORA),
                *("tokens", "tokens, packed, lora"),
            ),
        ),
        Layout(
            4,
            {"cp": 2, "tp": 2, "sequence_parallel": True},
            cases=chosen("embedding", "tokens, packed, lora"),
        ),
    )


@pytest.mark.full
class TestMegatronStages(BackendConformance):
    """Of a dense model of four blocks, so that there are four stages, and stages of several blocks."""

    backend = "megatron"
    cases = ALL_CASES
    blocks = 4
    seeing = "Qwen3VL"
    preload = ("megatron_imported",)
    deviations: ClassVar = {"test_every_claim_is_tried": "the other layouts have the rest"}
    layouts = (
        Layout(
            2,
            {"pp": 2},
            cases=chosen("clipped hard, tied", "accumulated", "a part of the weights", "dpo, lora", "bfloat16", VIT),
        ),
        Layout(4, {"pp": 4}, cases=chosen()),
        Layout(2, {"pp": 2, "vpp": 2}, cases=chosen("clipped hard, tied", "packed", "value", "negatives", "tokens")),
        Layout(2, {"pp": 2}, {"backend.stages": (3, 1)}, "uneven", cases=chosen()),
    )


class TestMegatronExperts(ExpertConformance):
    """Of a mixture of experts, of which Megatron runs none that reads images."""

    backend = "megatron"
    cases = OF_TEXT
    preload = ("megatron_imported",)
    layouts = (
        Layout(
            2,
            {"ep": 2},
            cases=chosen("packed", "a part of the weights", "dpo, lora", "reward", "bfloat16"),
        ),
        Layout(4, {"ep": 2, "pp": 2}, cases=chosen("dpo, lora")),
        Layout(2, {"ep": 2}, {"backend.dispatcher": "allgather"}, "allgather", cases=chosen()),
        Layout(2, {"tp": 2}, cases=chosen("dpo, lora")),
        Layout(2, {"tp": 2, "ep": 2, "sequence_parallel": True}, cases=chosen("packed")),
        Layout(2, {"tp": 2, "etp": 2, "sequence_parallel": True}, cases=chosen()),
    )


def test_every_claim_is_tried_by_one_of_the_three() -> None:
    kits = (TestMegatron, TestMegatronStages, TestMegatronExperts)
    tried = {key for kit in kits for layout in kit.layouts for key in layout.parallel}
    claimed = load_backend("megatron").capabilities
    assert claimed is not None
    assert claimed.parallel <= tried


def test_token_views_with_padded_vocabulary(tmp_path: Path) -> None:
    """Rows that only pad the unembedding, which two does not divide, take no part in views of tokens."""
    layout, odd = Layout(2, {"tp": 2, "sequence_parallel": True}), Subject(changes=(("vocab_size", 267),))
    checks = Checks(Trials("megatron", tmp_path, preload=("megatron_imported",), subject=odd), [layout])
    checks.trajectory(BY_NAME["tokens"], layout)
    checks.token_results(BY_NAME["tokens"], layout)

"""The page of what was proven where names existing tests, and only GPU results that were measured."""

from __future__ import annotations

import re
from pathlib import Path

import docs
from gpu_cases import CASES, everything

ROOT = Path(__file__).resolve().parents[2]


def test_named_cpu_tests_exist() -> None:
    named = [place for _, place in everything().values() if "tests/" in place]
    assert len(named) > 10
    for place in named:
        for path in re.findall(r"tests/[\w/.]+", place):
            assert (ROOT / path).exists(), place


def test_gpu_claims_need_a_passed_gpu_test() -> None:
    """Only a passed test on a GPU counts as proven."""
    one, two, three, *rest = everything()
    page = docs.proven_page(
        {"device": "NVIDIA Made-Up", "found": {one: "passed", two: "failed", three: "skipped: needs flash_attn"}}
    )
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert rows[0].endswith("| proven on NVIDIA Made-Up |")
    assert rows[1].endswith("| **fails** on NVIDIA Made-Up |")
    assert rows[2].endswith("| nowhere yet (skipped: needs flash_attn) |")
    assert all(row.endswith("| nowhere yet |") for row in rows[3:])
    assert len(rows) == 3 + len(rest)


def test_a_dry_run_leaves_out_flags_that_the_case_has() -> None:
    for case in CASES:
        flags = " ".join(case.flags)
        assert not case.only_gpu or " ".join(case.only_gpu) in flags, case.name

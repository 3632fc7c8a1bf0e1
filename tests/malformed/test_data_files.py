"""Data files that are damaged, hostile or not what their names say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from judge import Case, judge, sampled


def show(dataset: str) -> list[str]:
    """The command line that reads a data set and shows a sample of it."""
    return ["config", "show", "sft", "--model", "model", "--dataset", dataset, "--sample", "1"]


def content(name: str, data: bytes) -> Callable[[Path], Sequence[str]]:
    """Writes a data file."""

    def build(folder: Path) -> Sequence[str]:
        (folder / name).write_bytes(data)
        return show(name)

    return build


CASES = [
    Case("an empty file", content("empty.jsonl", b""), "refused", ("empty.jsonl", "is empty")),
    Case("cut off in the first line", content("cut.jsonl", b'{"messages": ['), "refused", ("cut.jsonl:1",)),
]


@pytest.mark.parametrize("case", sampled(CASES))
def test_a_data_file_is_answered_clearly(case: Case, template: Path) -> None:
    judge(case, template)

"""What plans are made of, where it is damaged or hostile: the ledger and what was measured, and devices in files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from judge import Case, judge, sampled
from spoil import NOT_A_FILE, NOT_AN_OBJECT

from swift_plan import ledger

PLAN = ["plan", "--model", "model", "--gpus"]
DEVICE: dict[str, Any] = {
    "name": "T4", "gigabytes": 16, "tflops": 65, "memory_bandwidth": 320, "link": 16, "network": 3, "per_machine": 8,
}  # fmt: skip
ENTRY: dict[str, Any] = {
    "backend": "fsdp", "device": "H100", "level": 0, "layout": {}, "parameters": 1, "predicted_bytes": 1.0,
    "measured_bytes": 1.1, "predicted_seconds": 1.0, "measured_seconds": 1.0,
}  # fmt: skip
MESSAGE: dict[str, Any] = {"operation": "all_reduce", "ways": 2, "stride": 1, "latency": 1e-5, "per_byte": 1e-9}
VALUES: dict[str, Any] = {
    "null": None,
    "a number": 5,
    "negative": -1,
    "zero": 0,
    "a text": "x",
    "a list": [1],
    "an object": {"a": 1},
    "NaN": math.nan,
    "infinite": math.inf,
    "an integer of 400 digits": 10**400,
    "true": True,
    "half of a surrogate pair": "\ud800",
}


def device(content: Mapping[str, Any], spoil: Callable[[Path], object], folder: Path) -> Sequence[str]:
    """Plans for a device in a file."""
    (folder / "mine.json").write_text(json.dumps(content), encoding="utf-8")
    spoil(folder / "mine.json")
    return [*PLAN, "2xmine.json"]


def kept(name: str, lines: Sequence[object], spoil: Callable[[Path], object], _folder: Path) -> Sequence[str]:
    """Plans where earlier runs left this in the cache."""
    file = Path(os.environ["XDG_CACHE_HOME"]) / "swift" / name
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    spoil(file)
    return [*PLAN, "2xH100"]


SPOILED = {**NOT_A_FILE, **NOT_AN_OBJECT}
CASES = [
    Case(f"device: {name}", partial(device, DEVICE, spoil), "refused", ("mine.json",))
    for name, spoil in SPOILED.items()
]
CASES += [
    Case(f"device: {key} {name}", partial(device, {**DEVICE, key: value}, bool), "either", ("mine.json", key))
    for key in DEVICE
    for name, value in VALUES.items()
]
CASES += [
    Case(f"{file}: {name}", partial(kept, file, [ENTRY], spoil), "works")
    for file in ("plans.jsonl", "speeds.json", "messages.json")
    for name, spoil in SPOILED.items()
]
CASES += [
    Case(f"ledger: {key} {name}", partial(kept, "plans.jsonl", [{**ENTRY, key: value}], bool), "works")
    for key in ENTRY
    for name, value in VALUES.items()
]
CASES += [
    Case(
        f"messages: {key} {name}",
        partial(kept, "messages.json", [{"version": 1, "machines": {"2xH100": [{**MESSAGE, key: value}]}}], bool),
        "works",
    )
    for key in MESSAGE
    for name, value in VALUES.items()
]
CASES += [
    Case(
        f"speeds: {key} {name}",
        partial(kept, "speeds.json", [{"H100": {"speeds": {}, "rows": 3, key: value}}], bool),
        "works",
    )
    for key in ("speeds", "rows")
    for name, value in VALUES.items()
]


@pytest.mark.parametrize("case", sampled(CASES))
def test_a_plan_is_made_or_its_file_is_named(case: Case, template: Path) -> None:
    judge(case, template)


def test_a_run_is_not_noted_in_a_pipe_that_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "plans.jsonl")
    monkeypatch.setenv(ledger.LEDGER, str(tmp_path / "plans.jsonl"))
    with pytest.raises(OSError, match=r"plans\.jsonl"):
        ledger.add(ledger.LedgerEntry(**ENTRY))
    assert not list(ledger.entries("fsdp", "H100"))


@pytest.mark.parametrize("key", ["backend", "device", "predicted_bytes", "measured_seconds"])
@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
def test_damaged_lines_of_a_ledger_cost_themselves_alone(
    key: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plans.jsonl").write_text(f"{json.dumps({**ENTRY, key: value})}\n{json.dumps(ENTRY)}\n")
    monkeypatch.setenv(ledger.LEDGER, str(tmp_path / "plans.jsonl"))
    assert ledger.LedgerEntry(**ENTRY) in list(ledger.entries("fsdp", "H100"))

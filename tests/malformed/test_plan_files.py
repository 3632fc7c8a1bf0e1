"""What plans are made of, where it is damaged or hostile: the ledger and what was measured, and devices in files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from draws import drawn, judge_all, wrong
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
    Case(f"{file}: {name}", partial(kept, file, [ENTRY], spoil), "works")
    for file in ("plans.jsonl", "speeds.json", "messages.json")
    for name, spoil in drawn(file, SPOILED.items(), 6)
]


@pytest.mark.parametrize("case", sampled(CASES, every=4))
def test_a_plan_is_made_or_its_file_is_named(case: Case, template: Path) -> None:
    judge(case, template)


@pytest.mark.parametrize("key", DEVICE)
def test_wrong_value_of_a_device_is_answered_clearly(key: str, template: Path) -> None:
    builds = {repr(value): partial(device, {**DEVICE, key: value}, bool) for value in wrong(key, 5)}
    judge_all([Case(value, build, "either", ("mine.json", key)) for value, build in builds.items()], template)


@pytest.mark.parametrize(
    ("name", "entry", "around"),
    [
        ("plans.jsonl", ENTRY, lambda entry: entry),
        ("messages.json", MESSAGE, lambda entry: {"version": 1, "machines": {"2xH100": [entry]}}),
        ("speeds.json", {"speeds": {}, "rows": 3}, lambda entry: {"H100": entry}),
    ],
)
def test_damaged_measurements_cost_themselves_alone(
    name: str, entry: dict[str, Any], around: Callable[[object], object], template: Path
) -> None:
    changed = [{**entry, key: value} for key in entry for value in wrong(f"{name} {key}", 2)]
    judge_all([Case(f"{each!r}", partial(kept, name, [around(each)], bool), "works") for each in changed], template)


def test_a_run_is_not_noted_in_a_pipe_that_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "plans.jsonl")
    monkeypatch.setenv(ledger.LEDGER, str(tmp_path / "plans.jsonl"))
    with pytest.raises(OSError, match=r"plans\.jsonl"):
        ledger.add(ledger.LedgerEntry(**ENTRY))
    assert not list(ledger.entries("fsdp", "H100"))


@pytest.mark.parametrize("key", ["backend", "device", "predicted_bytes", "measured_seconds"])
def test_damaged_lines_of_a_ledger_cost_themselves_alone(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{**ENTRY, key: value} for value in (*wrong(key, 14), 10**400)]
    (tmp_path / "plans.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, ENTRY]))
    monkeypatch.setenv(ledger.LEDGER, str(tmp_path / "plans.jsonl"))
    assert ledger.LedgerEntry(**ENTRY) in list(ledger.entries("fsdp", "H100"))

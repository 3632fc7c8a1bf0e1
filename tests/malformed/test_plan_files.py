"""Files that plans are made of, damaged or hostile: the ledger, what was measured, and descriptions of devices."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge import Case, judge
from spoil import BAD, Spoil, put
from strategies import bad_file, examples, spoiled, wrong

from swift_plan import ledger
from swift_plan.cluster import cluster
from swift_plan.timing import Speeds

PLAN = ["plan", "--model", "model", "--gpus"]
DEVICE: dict[str, Any] = {
    "name": "T4", "gigabytes": 16, "tflops": 65, "memory_bandwidth": 320, "link": 16, "network": 3, "per_machine": 8,
}  # fmt: skip
ENTRY: dict[str, Any] = {
    "backend": "fsdp", "device": "H100", "level": 0, "layout": {}, "parameters": 1, "predicted_bytes": 1.0,
    "measured_bytes": 1.1, "predicted_seconds": 1.0, "measured_seconds": 1.0,
}  # fmt: skip
MESSAGE: dict[str, Any] = {"operation": "all_reduce", "ways": 2, "stride": 1, "latency": 1e-5, "per_byte": 1e-9}
KEPT: dict[str, Any] = {
    "plans.jsonl": ENTRY,
    "messages.json": {"version": ledger._VERSION, "machines": {"2xH100": [MESSAGE]}},
    "speeds.json": {"H100": {"speeds": vars(Speeds()), "rows": 3}},
}
"""What earlier runs left in the cache."""
kept = st.sampled_from(sorted(KEPT))


def _device(content: object, spoil: Spoil, folder: Path) -> Sequence[str]:
    (folder / "mine.json").write_text(json.dumps(content), encoding="utf-8")
    spoil(folder / "mine.json")
    return [*PLAN, "2xmine.json"]


def _kept(name: str, content: object, spoil: Spoil, _folder: Path) -> Sequence[str]:
    file = Path(os.environ["XDG_CACHE_HOME"]) / "swift" / name
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(content) + "\n", encoding="utf-8")
    spoil(file)
    return [*PLAN, "2xH100"]


@examples(17)
@given(bad_file)
def test_device_that_is_no_json_object_is_refused(template: Path, name: str) -> None:
    judge(Case(name, partial(_device, DEVICE, BAD[name]), names=("mine.json",)), template)


@examples(24)
@given(st.sampled_from(sorted(DEVICE)), wrong())
def test_wrong_value_of_a_device_is_handled_clearly(template: Path, key: str, value: Any) -> None:
    judge(Case(key, partial(_device, {**DEVICE, key: value}, bool), "either", ("mine.json", key)), template)


@examples(12)
@given(kept, bad_file)
def test_damaged_measurements_do_not_stop_a_plan(template: Path, name: str, how: str) -> None:
    judge(Case(name, partial(_kept, name, KEPT[name], BAD[how]), "works"), template)


def _check_read() -> None:
    """What is read of damaged files is an entry unharmed, or nothing."""
    found = list(ledger.entries("fsdp", "H100"))
    assert all(-1 < entry.residual(what) < math.inf for entry in found for what in ("bytes", "seconds"))
    assert all(0 < value < math.inf for value in vars(ledger.known_speeds("H100")[0]).values())
    costs = ledger.known_messages(cluster("2xH100")).values()
    assert all(0 <= value < math.inf for cost in costs for value in vars(cost).values())


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ledger.LEDGER, str(tmp_path / "plans.jsonl"))
    return tmp_path


@examples(50)
@given(kept.flatmap(lambda name: st.tuples(st.just(name), spoiled(KEPT[name]))))
def test_wrong_measurement_is_ignored(cached: Path, changed: tuple[str, Any]) -> None:
    name, (keys, value) = changed
    for other in cached.iterdir():
        other.unlink()
    lines = [put(KEPT[name], keys, value), *([ENTRY] if name == "plans.jsonl" else [])]
    (cached / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    _check_read()
    assert name != "plans.jsonl" or ledger.LedgerEntry(**ENTRY) in ledger.entries("fsdp", "H100")


def test_pipe_without_a_reader_takes_no_entry(cached: Path) -> None:
    os.mkfifo(cached / "plans.jsonl")
    with pytest.raises(OSError, match=r"plans\.jsonl"):
        ledger.add(ledger.LedgerEntry(**ENTRY))
    assert not list(ledger.entries("fsdp", "H100"))

"""Predictions of plans next to measurements of runs: a line for each run, of which error bars are made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from math import inf
from pathlib import Path
from typing import Any

from swift.errors import UsageError
from swift.files import replace_file, user_cache
from swift.untrusted import read_bytes, read_json_object
from swift_plan.cluster import Cluster
from swift_plan.messages import MessageCost, MessageKind
from swift_plan.timing import Speeds, Timing

_SPEEDS = "speeds.json"
_MESSAGES, _VERSION = "messages.json", 1
LEDGER = "SWIFT_PLAN_LEDGER"
"""Environment variable that names another file."""

_LARGEST = 1 << 28
"""Bytes that a ledger may have: a million runs."""


@dataclass(frozen=True)
class LedgerEntry:
    """One run: what was predicted of it, and what was measured."""

    backend: str
    device: str
    level: int
    """How the prediction was made: 0 is by counting, 1 with traced layers."""
    layout: Mapping[str, int]
    parameters: int
    predicted_bytes: float
    measured_bytes: float
    predicted_seconds: float
    measured_seconds: float

    def residual(self, what: str) -> float:
        """Return how far 'bytes' or 'seconds' came out above what was predicted, as a part of that."""
        predicted = float(getattr(self, f"predicted_{what}"))
        return float(getattr(self, f"measured_{what}")) / predicted - 1 if predicted > 0 else 0.0


def ledger_path() -> Path:
    """Return where the ledger is."""
    named = os.environ.get(LEDGER)
    return Path(named) if named else user_cache() / "plans.jsonl"


def add(entry: LedgerEntry) -> None:
    """Append a run; lines of several runs that end at once do not mix."""
    path = ledger_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(asdict(entry)) + "\n").encode()
    # Not blocking: whoever opens a pipe for writing waits for a reader.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def entries(backend: str, device: str, level: int = 0) -> Iterator[LedgerEntry]:
    """Yield the runs of one backend on one kind of device, as they were predicted at one level.

    Lines that are no entries are passed over.
    """
    try:
        content = read_bytes(ledger_path(), UsageError, limit=_LARGEST)
    except UsageError:
        return
    for line in content.decode("utf-8", errors="replace").splitlines():
        entry = _entry(line)
        if entry is None or (entry.backend, entry.level) != (backend, level):
            continue
        if entry.device.lower() == device.lower():
            yield entry


def keep_speeds(device: str, speeds: Speeds, rows: int) -> None:
    """Keep what was measured of a kind of device, from so many runs, for plans to come."""
    known = dict(_kept(_SPEEDS))
    known[device] = {"speeds": asdict(speeds), "rows": rows}
    _keep(_SPEEDS, known)


def known_speeds(device: str) -> tuple[Speeds, int]:
    """Return the speeds of a kind of device and of how many measured runs they are made; of none, those assumed."""
    kept = _kept(_SPEEDS).get(device, {})
    try:
        speeds = Speeds(**{field.name: float(kept["speeds"][field.name]) for field in fields(Speeds)})
        if all(0 < value < inf for value in asdict(speeds).values()):
            return speeds, int(kept["rows"])
    except (KeyError, TypeError, ValueError, OverflowError):
        pass  # of another version, or damaged
    return Speeds(), 0


def keep_messages(where: Cluster, costs: Mapping[MessageKind, MessageCost]) -> None:
    """Keep what messages take within a machine of so many such devices, next to kinds that were measured before."""
    together = {**known_messages(where), **costs}
    rows = [{**kind._asdict(), **asdict(cost)} for kind, cost in sorted(together.items())]
    machines = _kept(_MESSAGES).get("machines", {}) if _kept(_MESSAGES).get("version") == _VERSION else {}
    others = machines if isinstance(machines, dict) else {}
    _keep(_MESSAGES, {"version": _VERSION, "machines": {**others, _machine(where): rows}})


def known_messages(where: Cluster) -> dict[MessageKind, MessageCost]:
    """Return what was measured of messages within such a machine; nothing of a file of another version, or damaged."""
    kept = _kept(_MESSAGES)
    try:
        rows = kept["machines"].get(_machine(where), []) if kept["version"] == _VERSION else []
        costs = {
            MessageKind(str(row["operation"]), int(row["ways"]), int(row["stride"])): MessageCost(
                float(row["latency"]), float(row["per_byte"])
            )
            for row in rows
        }
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return {}
    return costs if all(0 <= each < inf for cost in costs.values() for each in asdict(cost).values()) else {}


def known_timing(where: Cluster) -> Timing:
    """Return the speed of a cluster as far as it was measured, and as it is assumed beyond that."""
    return Timing(where, known_speeds(where.device.name)[0], known_messages(where))


def _machine(where: Cluster) -> str:
    # Processes of one machine share its links, and on the CPU its cores.
    return f"{where.per_machine}x{where.device.name}"


def _keep(name: str, content: Mapping[str, Any]) -> None:
    path = ledger_path().with_name(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(content, indent=2) + "\n")


def _kept(name: str) -> Mapping[str, Any]:
    try:
        return read_json_object(ledger_path().with_name(name), UsageError)
    except UsageError:
        return {}


def _entry(line: str) -> LedgerEntry | None:
    try:
        content: Any = json.loads(line)
        entry = LedgerEntry(**{field.name: content[field.name] for field in fields(LedgerEntry)})
        if not isinstance(entry.backend, str) or not isinstance(entry.device, str):
            return None
        residuals = [entry.residual(what) for what in ("bytes", "seconds")]
        return entry if all(-1 < residual < inf for residual in residuals) else None  # NaN is no residual
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None

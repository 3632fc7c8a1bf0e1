"""Hangs and dead processes: who waits for what, said in minutes, by every process that can still speak.

Next to the main thread of each process runs one that tells the others, over a store that no engine uses, that it lives,
how far it has come and what it waits for. When nothing has moved anywhere for `train.timeout_minutes`, each writes
its stacks into the run's folder and ends; one says for all which process is at fault.
"""

from __future__ import annotations

import faulthandler
import json
import linecache
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import torch
from pydantic import TypeAdapter, ValidationError
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import PrefixStore, TCPStore

from swift.contracts import World
from swift.processes.reports import end_with

FOLDER = "hang"
"""In the run's folder: stacks and collectives of each process."""

_READ_OR_WRITTEN = 2**20
"""Bytes that count as progress: a checkpoint is being written, or weights are being read."""
_STORE_TIMEOUT = timedelta(seconds=20)
_FAREWELL = 5.0
"""Seconds that the main process waits in the end for what the others say last."""
_LISTED = 16

_beats = 0


def heartbeat() -> None:
    """Tell the watchdog that this process makes progress. Engines call it with each micro-batch."""
    global _beats
    _beats += 1


@dataclass(frozen=True)
class Pulse:
    """Heartbeat that a process sends to the others."""

    count: int
    """Grows with every message: the process lives."""
    progress: int
    """Grows when it makes progress."""
    doing: str
    armed: bool
    """Whether it is in a part of the run in which standing still is a fault."""
    waits: str = ""
    """What it has been waiting for, when it has stood still for a while."""
    over: bool = False


_PULSE = TypeAdapter(Pulse)


@dataclass
class _Seen:
    """Another process, or this one, as this one knows it. Times are of this process's clock."""

    alive: float
    moved: float
    pulse: Pulse | None = None


class Watchdog:
    """Watches from its making on until `close`; harmless and idle with one process."""

    def __init__(self, world: World, limit: timedelta, share: Callable[[str], str], *, folder: Path) -> None:
        """`share` gives the main process's value to all."""
        self.folder = folder
        """The run's."""
        self.advice: Callable[[], str] = str
        """Says from where to go on."""
        self._world = world
        self._limit = limit.total_seconds()
        self._doing, self._armed = "preparing", False
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._main = threading.main_thread().ident or 0
        self._read_or_written = 0
        self._moved_bytes = 0
        self._count = 0
        if world.size == 1:
            return
        token = share(uuid.uuid4().hex)
        store = _own_store()
        if store is None:
            return
        self._store = PrefixStore(f"watchdog/{token}", store)
        now = time.monotonic()
        self._seen = {rank: _Seen(now, now) for rank in range(world.size)}
        self._own = self._pulse(now)
        for name, work in (("watchdog", self._watch), ("watchdog's messenger", self._exchange)):
            self._threads.append(threading.Thread(target=work, name=name, daemon=True))
            self._threads[-1].start()

    def at(self, doing: str, *, armed: bool = True) -> None:
        """Set this process's activity. Where `armed` is false it may take as long as it likes, while it lives."""
        self._doing, self._armed = doing, armed
        heartbeat()

    @property
    def doing(self) -> str:
        """Return this process's activity."""
        return self._doing

    def close(self, *, in_order: bool = False) -> None:
        """Report that the run is over on this process; where it ended in order, others are about to say so too."""
        self._over.set()
        for thread in self._threads:
            thread.join(_STORE_TIMEOUT.total_seconds())
        if self._threads:
            if in_order and self._world.rank == 0 and not any(thread.is_alive() for thread in self._threads):
                self._await_others()
            self._threads.clear()
            del self._store

    def _await_others(self) -> None:
        """Stay while others talk: the store may end with this process, and torch would complain on their terminals."""
        end = time.monotonic() + _FAREWELL
        with suppress(RuntimeError):
            for rank in self._seen.keys() - {self._world.rank}:
                while not ((pulse := self._ask(rank)) and pulse.over) and time.monotonic() < end:
                    time.sleep(0.005)

    @property
    def _interval(self) -> float:
        return min(10.0, max(0.1, self._limit / 20))

    def _watch(self) -> None:
        """Judge by what is known; never wait for anybody."""
        before = time.monotonic()
        while not self._over.wait(self._interval):
            now = time.monotonic()
            if now - before > self._interval + self._limit / 2:
                # This process was stopped itself, by a debugger or with its whole job, and knows nothing.
                for seen in self._seen.values():
                    seen.alive = seen.moved = now
            self._own = self._pulse(now)
            self._note(self._world.rank, self._own, now)
            if self._stands_still(now):
                self._end(now)
            before = time.monotonic()

    def _exchange(self) -> None:
        """Tell the others and ask them. Where the store's keeper is stopped this waits, perhaps for ever."""
        with suppress(RuntimeError):
            while not self._over.wait(self._interval):
                self._tell(self._own)
                for rank in self._seen.keys() - {self._world.rank}:
                    pulse = self._ask(rank)
                    if pulse is not None:
                        self._note(rank, pulse, time.monotonic())
        with suppress(RuntimeError):
            self._tell(replace(self._own, count=self._own.count + 1, over=True))

    def _note(self, rank: int, pulse: Pulse, now: float) -> None:
        seen = self._seen[rank]
        if pulse == seen.pulse:
            return
        before, seen.pulse, seen.alive = seen.pulse, pulse, now
        if before is None or before.progress != pulse.progress or not pulse.armed:
            seen.moved = now

    def _pulse(self, now: float) -> Pulse:
        self._count += 1
        waits = self._waits() if now - self._seen[self._world.rank].moved > self._limit / 4 else ""
        return Pulse(self._count, self._progress(), self._doing, self._armed, waits)

    def _tell(self, pulse: Pulse) -> None:
        self._store.set(str(self._world.rank), _PULSE.dump_json(pulse).decode())

    def _ask(self, rank: int) -> Pulse | None:
        if not self._store.check([str(rank)]):
            return None
        try:
            return _PULSE.validate_json(self._store.get(str(rank)))
        except ValidationError:
            return None

    def _progress(self) -> int:
        """Heartbeats, and what was read and written."""
        with suppress(psutil.Error, AttributeError, OSError):
            io = psutil.Process().io_counters()
            total = io.read_chars + io.write_chars
            if total - self._read_or_written > _READ_OR_WRITTEN:
                self._read_or_written = total
                self._moved_bytes += 1
        return _beats + self._moved_bytes

    def _stands_still(self, now: float) -> bool:
        """Nobody moves; or, where everybody may take long, somebody is gone. Those who are done move no more."""
        going = {rank: seen for rank, seen in self._seen.items() if seen.pulse is None or not seen.pulse.over}
        if self._armed:
            return all(now - seen.moved > self._limit for seen in going.values())
        return any(now - seen.alive > self._limit for seen in going.values())

    def _waits(self) -> str:
        """Return the collective that this process is in, and the place in the code."""
        frame = sys._current_frames().get(self._main)
        parts = [f"for {collective}" if (collective := _collective()) else "", _innermost_line(frame)]
        return " ".join(filter(None, parts))

    def _end(self, now: float) -> None:
        report = self._report(now)
        silent = self._silent(now)
        with suppress(OSError):
            self._dump(report)
        chat_engine = min(rank for rank in self._seen if rank not in silent)
        end_with(report, speaks=self._world.rank == chat_engine)

    def _silent(self, now: float) -> set[int]:
        """Return the processes that have been silent for so long that they must be stopped or gone."""
        patience = max(self._limit / 2, 3 * self._interval)
        return {
            rank
            for rank, seen in self._seen.items()
            if rank != self._world.rank and now - seen.alive > patience and not (seen.pulse and seen.pulse.over)
        }

    def _report(self, now: float) -> str:
        silent, own = self._silent(now), self._seen[self._world.rank].pulse
        alive = {rank: seen.pulse for rank, seen in self._seen.items() if rank not in silent and seen.pulse is not None}
        where = own.doing if own is not None else self._doing
        lines = [f"The run makes no progress: nothing has happened for {_duration(self._limit)}, at {where}."]
        reports: dict[str, list[int]] = {}
        for rank in sorted(silent):
            pulse = self._seen[rank].pulse
            last = f", last heard of at {pulse.doing}" if pulse is not None else ""
            reports.setdefault(f"no sign of life{last}: stopped, swapping, or its machine is gone", []).append(rank)
        for rank, pulse in sorted(alive.items()):
            reports.setdefault(_condition(pulse), []).append(rank)
        for text, ranks in list(reports.items())[:_LISTED]:
            lines.append(f"  {_processes(ranks)}: {text}")
        if len(reports) > _LISTED:
            lines.append(f"  and {len(reports) - _LISTED} more, in the stacks")
        lines.append(f"Stacks of those that live: {self.folder / FOLDER}")
        if silent:
            lines.append(f"Look at {_processes(sorted(silent))} first (its machine's log, dmesg).")
        lines += [self.advice(), "If it only takes long, allow more: --train.timeout_minutes MINUTES"]
        return "\n".join(filter(None, lines))

    def _dump(self, report: str) -> None:
        folder = self.folder / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"process-{self._world.rank}.txt").open("w", encoding="utf-8") as file:
            file.write(f"{report}\n\n")
            frame = sys._current_frames().get(self._main)
            file.write("Main thread:\n" + "".join(traceback.format_stack(frame)) + "\nAll threads:\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        entries = _collectives()
        (folder / f"process-{self._world.rank}.collectives.json").write_text(json.dumps(entries, indent=1))


def _own_store() -> TCPStore | None:
    """Return a connection of our own to the store where the processes met.

    The main thread may be waiting inside another.
    """
    try:
        return TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=_STORE_TIMEOUT,
        )
    except (KeyError, ValueError, RuntimeError):
        return None


def _condition(pulse: Pulse) -> str:
    if pulse.over:
        return "done"
    return f"at {pulse.doing}, waiting {pulse.waits}" if pulse.waits else f"at {pulse.doing}"


def _collective() -> str:
    """Return the collective that was begun and is not complete: 'all_reduce of 264x64 Float, group default_pg'."""
    entries = _collectives()
    open_ones = [each for each in entries if not each.get("retired") and each.get("state") != "completed"]
    if not open_ones:
        return ""
    # NCCL's may be many, of which the first is stuck; gloo leaves some of long ago open that nobody waits for.
    last_complete = max((each["record_id"] for each in entries if each.get("retired")), default=-1)
    entry = next((each for each in open_ones if each["record_id"] > last_complete), open_ones[-1])
    return _described(entry)


def _described(entry: Mapping[str, Any]) -> str:
    operation = str(entry.get("profiling_name", "a collective")).partition(":")[2] or "a collective"
    shapes = ["x".join(map(str, shape)) for shape in entry.get("input_sizes", [])]
    kinds = entry.get("input_dtypes", [])
    what = ", ".join(f"{shape} {kind}".strip() for shape, kind in zip(shapes, kinds, strict=False))
    number, name, *_ = [*map(str, entry.get("process_group", [])), "", ""]
    group = f"group {number}" + (f" ({name})" if name and name != "undefined" else "")
    return f"{operation}{f' of {what}' if what else ''}, {group}"


def _collectives() -> list[dict[str, Any]]:
    """Return the entries of torch's flight recorder for this process."""
    dump = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return []
    try:
        noted = json.loads(dump(True, False))
    except (RuntimeError, ValueError, UnicodeDecodeError):
        return []
    entries: list[dict[str, Any]] = noted.get("entries", [])
    return entries


def _innermost_line(frame: FrameType | None) -> str:
    """Return the innermost line that is not torch's or Python's own."""
    own = Path(torch.__file__).parent
    standard = Path(threading.__file__).parent
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        inside = own in path.parents or (standard in path.parents and "site-packages" not in path.parts)
        if not inside and path.exists():
            code = linecache.getline(str(path), frame.f_lineno).strip()
            return f"in {'/'.join(path.parts[-2:])}:{frame.f_lineno} ({frame.f_code.co_name}): {code}"
        frame = frame.f_back
    return ""


def _processes(ranks: Iterable[int]) -> str:
    listed = list(ranks)
    shown = ", ".join(map(str, listed[:8])) + (" ..." if len(listed) > 8 else "")
    return f"process{'es' if len(listed) > 1 else ''} {shown}"


def _duration(seconds: float) -> str:
    return f"{seconds / 60:g} minutes" if seconds >= 60 else f"{seconds:g} seconds"

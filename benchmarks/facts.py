"""Collect the facts about the machine that each result has, write results, and show them."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("swift-core", "torch", "transformers")


@dataclass(frozen=True)
class Figure:
    """One measured number, and its target where it has one."""

    what: str
    value: float
    unit: str = "x"
    at_least: float | None = None
    at_most: float | None = None

    @property
    def verdict(self) -> str:
        if self.at_least is not None:
            return f"target >= {self._text(self.at_least)}: {'met' if self.value >= self.at_least else 'MISSED'}"
        if self.at_most is not None:
            return f"target <= {self._text(self.at_most)}: {'met' if self.value <= self.at_most else 'MISSED'}"
        return ""

    @property
    def shown(self) -> dict[str, str]:
        return {"what": self.what, "figure": str(self), "verdict": self.verdict}

    def __str__(self) -> str:
        return self._text(self.value)

    def _text(self, value: float) -> str:
        digits = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        return f"{digits}x" if self.unit == "x" else f"{digits} {self.unit}".rstrip()


def cpu_seconds() -> float:
    """CPU time that this process and those of its children that have ended have taken since they were started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def memory_mib(*fields: str) -> float:
    """Return the sum of fields of the kernel's account of this process."""
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(size.split()[0]) for name, _, size in lines if name in fields) / 1024


def peak_memory_mib() -> float:
    """Return the most memory that this process has had since it was started."""
    return memory_mib("VmHWM")


def read_lines(file: Path) -> list[Any]:
    """Return what a file holds, one JSON document a line."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write_lines(file: Path, rows: Iterable[Any]) -> Path:
    """Write one JSON document a line, and return the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


class MemoryWatch:
    """How much memory a process takes beyond what it had when the watch began: looked at many times a second.

    Only memory of its own counts, not pages of files that the kernel keeps for everybody.
    """

    EVERY = 0.004
    """Seconds between looks; what is larger than a gibibyte takes much longer than that to fill."""

    def __init__(self) -> None:
        self._begin = self._now()
        self._peak = 0.0
        self._marks: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def mark(self, phase: str) -> None:
        """Record the peak of a finished phase in MiB, and reset it."""
        self._marks[phase], self._peak = max(self._peak, self._now() - self._begin), 0.0

    def end(self) -> dict[str, float]:
        """Peak by phase, and under "rest" what is still held when the allocator has given back what is free."""
        self._over.set()
        self._thread.join()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        return {**self._marks, "rest": self._now() - self._begin}

    def _look(self) -> None:
        while not self._over.wait(self.EVERY):
            self._peak = max(self._peak, self._now() - self._begin)

    @staticmethod
    def _now() -> float:
        return memory_mib("RssAnon", "RssShmem")


def machine() -> dict[str, Any]:
    """What numbers depend on; nothing that names the machine."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in PACKAGES},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def write(
    out: Path, part: str, command: str, figures: Sequence[dict[str, str]], details: dict[str, Any], **more: str
) -> Path:
    """Write the JSON file of a part: the command, the machine, the figures, and what they were made of."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{part}.json"
    content = {"command": command, "machine": {**machine(), **more}, "figures": figures, "details": details}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def show(title: str, figures: Sequence[Figure]) -> None:
    names, values = max(len(each.what) for each in figures), max(len(str(each)) for each in figures)
    print(f"\n{title}")
    for each in figures:
        print(f"  {each.what:<{names}}  {each!s:>{values}}  {each.verdict}".rstrip())


def write_page(folder: Path) -> None:
    """`README.md`: the figures of all parts that have results, with the command that makes them anew."""
    first = "[Ten numbers](../../docs/reference/numbers.md) has the figures to read first."
    lines = ["# Results", "", f"Ratios of things measured in one run; written by `python -m benchmarks`. {first}", ""]
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        on = ", ".join(
            f"{key} {value}" if key != "processor" else str(value) for key, value in content["machine"].items()
        )
        lines += [f"## {path.stem}", "", f"`{content['command']}` on {on}", "", "| what | figure | |", "|---|---:|---|"]
        lines += [f"| {each['what']} | {each['figure']} | {each['verdict']} |" for each in content["figures"]]
        lines.append("")
        for note in content["details"].get("notes", ()):
            lines += [note, ""]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")

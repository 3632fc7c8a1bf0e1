"""Screen of `swift watch`: state, progress, figures, loss curve, processes and the end of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swift.errors import SwiftError
from swift.observers.lines import EVAL_PREFIX, MEMORY, waiting_label
from swift.observers.text import count, duration, figure, label
from swift_ui.braille import curve
from swift_ui.looking.lines import RunLines, number
from swift_ui.looking.log import log_part
from swift_ui.looking.state import RunState, StateReader
from swift_ui.looking.view import arguments, short_facts, title_of

TIME_PARTS = {
    "compute_fraction": "compute",
    "communication_fraction": "communication",
    "optimizer_fraction": "optimizer",
    "data_fraction": "",
}
ROWS = 7
"""Lines of the curve."""
LOG_LINES = 6
MOST_RANKS, MOST_COLUMNS = 256, 16
"""Rows and columns of the table of processes."""
_COLORS = {"completed": "green", "running": "blue", "failed": "red", "died": "red"}
_SLOWER = 1.1
"""Compute time relative to the median from which a process is marked as slow."""


class WatchScreen:
    """Renders the state of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines = RunLines(folder)
        self._states = StateReader()
        self.state: RunState = self._states.state(folder)

    def render(self) -> RenderableType:
        """Read the run again, and return what to print."""
        self._lines.update()
        self.state = self._states.state(self._folder)
        parts: list[RenderableType] = [self._heading(), *self._progress(), self._figures()]
        parts += [
            each for each in (self._time_breakdown(), self._curve(), self._ranks(), *self._log()) if each is not None
        ]
        return Group(*parts)

    def _heading(self) -> Text:
        title = title_of(self._folder)
        facts = short_facts(arguments(self._folder))
        parts = [str(facts[name]) for name in ("model", "objective", "tuner", "backend") if name in facts]
        if _is_number(facts.get("processes")) and facts["processes"] > 1:
            parts.append(f"{facts['processes']} processes")
        text = Text(plain(f"{title['model']}/{title['name']}"), style="bold")
        text.append(f"  {self.state.name}", style=_COLORS.get(self.state.name, "yellow"))
        text.append(f"\n{plain(' · '.join(parts))}", style="dim")
        if self.state.cause:
            text.append(f"\n{plain(self.state.cause)}", style="red")
        return text

    def _progress(self) -> Iterator[RenderableType]:
        total = self.state.total_steps
        if total:
            yield Padding(ProgressBar(total=total, completed=self.state.step), 0)

    def _figures(self) -> RenderableType:
        last = self._lines.last
        parts = [f"step {self.state.step:,} of {self.state.total_steps:,}" if self.state.total_steps else "no step yet"]
        names = ("loss", f"{EVAL_PREFIX}loss", "grad_norm", "learning_rate", "reward", "completion_length")
        parts += [f"{label(name).lower()} {figure(last[name])}" for name in names if _is_number(last.get(name))]
        if _is_number(last.get("tokens_per_second")):
            parts.append(f"{count(last['tokens_per_second'])} tokens/s")
        if _is_number(last.get("mfu")):
            parts.append(f"MFU {last['mfu']:.1%}")
        if last.get(MEMORY):
            parts.append(f"{last[MEMORY]:.1f} GiB")
        if self.state.name == "running" and _is_number(last.get("remaining_time")):
            parts.append(f"{duration(last['remaining_time'])} left")
        return _Parts(parts)

    def _time_breakdown(self) -> Text | None:
        last = self._lines.last
        shown = [
            f"{name or waiting_label(last)} {last[key]:.1%}"
            for key, name in TIME_PARTS.items()
            if _is_number(last.get(key))
        ]
        return Text(f"a step's time: {', '.join(shown)}", style="dim") if shown else None

    def _curve(self) -> RenderableType | None:
        steps, values = self._lines.series().get("loss", [[], []])
        return _Curve("loss", steps, values) if len(values) > 1 else None

    def _ranks(self) -> RenderableType | None:
        rows = self._lines.ranks
        if len(rows) < 2:
            return None
        slow = slowest(rows)
        left_out = rows[MOST_RANKS:]
        shown = [*rows[:MOST_RANKS], *(row for row in left_out if slow is not None and row.get("rank") == slow)]
        more = f"and {count(len(rows) - len(shown))} more" if len(shown) < len(rows) else None
        table = Table(box=None, pad_edge=False, header_style="dim", caption=more)
        names = list(dict.fromkeys(name for row in shown for name in row))[:MOST_COLUMNS]
        for name in names:
            table.add_column(Text(plain(label(name).lower())), justify="left" if name == "host" else "right")
        for row in shown:
            is_slow = slow is not None and row.get("rank") == slow
            cells = (_cell(row.get(name)) for name in names)
            table.add_row(*cells, style="red" if is_slow else None)
        return table

    def _log(self) -> Iterator[Text]:
        try:
            lines = str(log_part(self._folder)["text"]).splitlines()[-LOG_LINES:]
        except SwiftError:
            return
        yield Text(plain("\n".join(lines)), style="dim", no_wrap=True, overflow="ellipsis")


class _Parts:
    """Strings in one line, wrapped only between them."""

    def __init__(self, parts: Sequence[str]) -> None:
        self._parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = ""
        for part in self._parts:
            if line and len(line) + 2 + len(part) > options.max_width:
                yield Text(line)
                line = ""
            line = f"{line}  {part}" if line else part
        yield Text(line)


class _Curve:
    """A curve as wide as the terminal, labeled with its highest and lowest value."""

    def __init__(self, name: str, steps: Sequence[float], values: Sequence[float]) -> None:
        self._name, self._steps, self._values = name, steps, values

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        marks = [figure(max(self._values)), *[""] * (ROWS - 2), figure(min(self._values))]
        margin = max(map(len, marks)) + 1
        for mark, line in zip(marks, curve(self._steps, self._values, options.max_width - margin, ROWS), strict=False):
            yield Text(f"{mark:>{margin - 1}} ", style="dim", end="").append(line, style="blue")
            yield Text("")


def plain(text: str) -> str:
    """Return a string without control characters, which a terminal would execute."""
    return "".join(letter for letter in text if letter == "\n" or letter.isprintable())


def slowest(rows: Sequence[Mapping[str, Any]]) -> object:
    """Return the rank that computes longest, if it takes much longer than the others, else None.

    Waiting for others makes all processes look equally slow: what they do without communication tells them apart.
    """
    measured = [number(row.get("own_seconds")) for row in rows]
    own = [each if each == each else 0.0 for each in measured]
    median = sorted(own)[(len(own) - 1) // 2]
    longest = max(range(len(own)), key=own.__getitem__)
    return rows[longest].get("rank") if len(rows) > 1 and own[longest] > _SLOWER * median else None


def _cell(value: object) -> Text:
    return Text(plain(figure(number(value) if _is_number(value) else value)))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

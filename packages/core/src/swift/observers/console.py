"""Terminal output of a run: a header, one line per logged step, and the commands to run next.

On a terminal, a progress bar with the latest values moves below these lines.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

from swift.contracts import RankFacts, Run, RunSummary, StepRecord
from swift.hookspecs import hookimpl
from swift.observers.facts import next_commands, setup_facts, space_of_checkpoints, unusable_samples
from swift.observers.lines import MEMORY, TIME_PARTS, Line, Meter, evaluation_of, waiting_label
from swift.observers.text import count, duration, figure, label, plural
from swift.terminal import can_redraw, relative, shows_work, work_at_hand
from swift.train.run_folder import REPORT_FILE

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress
    from rich.text import Text

FRAMES_PER_SECOND = 4

SHOWN = {
    "token_acc": "acc", "reward_accuracy": "reward acc", "reward_margin": "margin", "kl": "kl", "reward": "reward",
    "completion_length": "length",
}  # fmt: skip
"""The objective's metrics that are printed; `logging.jsonl` and the report have all of them."""
NARROW = ("lr", "memory", "left", "speed")
"""Parts of a line that a narrow terminal has no room for, in the order in which they are left out."""


class ConsoleObserver:
    """Prints the header, progress, evaluations, checkpoints and the summary."""

    def __init__(self) -> None:
        self._bar: _Bar | None = None
        self._slowest: int | None = None
        self._sized = False

    @hookimpl
    def swift_run_start(self, run: Run) -> None:
        facts = setup_facts(run) | {"folder": str(relative(run.folder))}
        width = max(len(name) for name in facts)
        for name, value in facts.items():
            run.say(f"  {label(name):<{width}}  {value}")
        self._meter = Meter(run.config.logging.steps)
        if run.config.train.compile:
            run.say("torch.compile compiles the model during the first step. This may take minutes.")
        if can_redraw(sys.stdout):
            self._bar = _Bar(run.total_steps, compiles=run.config.train.compile)

    @hookimpl
    def swift_step_end(self, run: Run, record: StepRecord) -> None:
        line = self._meter.take(record)
        if self._bar is not None:
            self._bar.advance(record, line)
        if line is not None:
            run.say(step_text(line, self._width()))
        if line is not None and (breakdown := time_text(line)):
            run.say(f"  {breakdown}")
        self._name_slowest(run, record)
        if line is not None and record.evaluation is not None:
            run.say(f"  evaluation at step {record.step}: {metrics_text(evaluation_of(line))}")

    def _width(self) -> int | None:
        """Return the columns of the terminal; None for a file, where lines do not wrap."""
        return shutil.get_terminal_size().columns if self._bar is not None or sys.stdout.isatty() else None

    def _name_slowest(self, run: Run, record: StepRecord) -> None:
        """Report each process that slows down the others once."""
        slow = record.slowest
        if slow is not None and slow.rank != self._slowest:
            run.say(f"  {slowest_text(slow, record.ranks)}")
        if record.ranks and any(each.own_seconds is not None for each in record.ranks):
            self._slowest = None if slow is None else slow.rank

    @hookimpl
    def swift_checkpoint_saved(self, run: Run, step: int, folder: Path) -> None:
        run.say(f"  saved {relative(folder)}")
        if not self._sized and (size := space_of_checkpoints(run, folder)):
            run.say(f"  {size}")
        self._sized = True

    @hookimpl
    def swift_run_end(self, run: Run, summary: RunSummary) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if (line := self._meter.rest()) is not None:
            run.say(step_text(line, self._width()))
        for text in summary_lines(run, summary):
            run.say(text)


def step_text(line: Line, width: int | None = None) -> str:
    """Return a logged step as one plain line, which fits a terminal of this width."""
    parts = {"step": f"step {line['global_step/max_steps']}", **_figures(line)}
    parts["left"] = f"{duration(line['remaining_time'])} left"
    for name in NARROW:
        if width is not None and len("  ".join(parts.values())) > width:
            parts.pop(name, None)
    return "  ".join(parts.values())


def time_text(line: Line) -> str:
    """`time: computing 71 %, communication 20 %, waiting for data 1 %, optimizer 8 %`, where it was measured."""
    if line.get(TIME_PARTS[0]) is None:
        return ""
    labels = dict(zip(TIME_PARTS, ("computing", "communication", waiting_label(line), "optimizer"), strict=True))
    parts = [f"{label} {line[name]:.0%}" for name, label in labels.items() if line[name] or name != TIME_PARTS[1]]
    return f"time: {', '.join(parts)}"


def slowest_text(slow: RankFacts, ranks: Sequence[RankFacts]) -> str:
    """`process 3 on node-b slows down the others: its step takes 0.41s without communication (median: 0.3s)`."""
    own = median_low([each.own_seconds or 0.0 for each in ranks])
    return (
        f"process {slow.rank} on {slow.host} slows down the others: its step takes {figure(slow.own_seconds)}s "
        f"without communication (median: {figure(own)}s)"
    )


def metrics_text(metrics: Mapping[str, Any]) -> str:
    """`loss 1.234  token acc 0.61`."""
    return "  ".join(f"{name.replace('_', ' ')} {figure(value)}" for name, value in metrics.items())


def summary_lines(run: Run, summary: RunSummary) -> list[str]:
    """Return the last lines of a run."""
    speed = f", {count(summary.tokens / summary.seconds)} tokens/s" if summary.seconds else ""
    lines = [
        f"{label(summary.status)} after {plural(summary.steps, 'step')} and {count(summary.tokens)} tokens"
        f" in {duration(summary.seconds)}{speed}."
    ]
    left_out = unusable_samples(run)
    if left_out:
        reasons = ", ".join(f"{reason} {each.count:,}" for reason, each in left_out.items())
        lines.append(f"Unusable samples: {sum(each.count for each in left_out.values()):,} ({reasons}).")
    if (run.folder / REPORT_FILE).exists():
        lines.append(f"Curves: {relative(run.folder / REPORT_FILE)}")
    return lines + [f"{purpose}: {command}" for purpose, command in next_commands(run, summary, relative)]


def _figures(line: Line) -> dict[str, str]:
    memory = {"memory": f"{line[MEMORY]:.1f} GiB"} if line[MEMORY] else {}
    return {
        "loss": f"loss {figure(line['loss'])}",
        "lr": f"lr {figure(line['learning_rate'], 3)}",
        "grad_norm": f"grad norm {figure(line['grad_norm'], 3)}",
        **{name: f"{title} {figure(line[name], 3)}" for name, title in SHOWN.items() if name in line},
        "speed": f"{count(line['tokens_per_second'])} tok/s",
        **memory,
    }


class _Bar:
    """A progress bar with the remaining time, and the latest values below it."""

    def __init__(self, total_steps: int, *, compiles: bool) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.text import Text

        self._progress: Progress = Progress(
            TextColumn("  step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TimeRemainingColumn(elapsed_when_finished=True),
            auto_refresh=False,
            expand=True,
        )
        self._task = self._progress.add_task("", total=total_steps)
        self._figures: Text = Text("", style="dim", no_wrap=True, overflow="ellipsis")
        self._newest = ""
        self._awaited = "compiling for the first step" if compiles else "waiting for the first step"
        self._started = time.monotonic()
        self._line: Line = {}
        self._live: Live = Live(
            console=Console(),
            get_renderable=self._render,
            refresh_per_second=FRAMES_PER_SECOND,
            transient=True,
        )
        self._open = ExitStack()
        self._open.enter_context(shows_work())
        self._open.enter_context(self._live)

    def advance(self, record: StepRecord, line: Line | None) -> None:
        """Move the bar and show the step's loss, with the speed of the latest logged line."""
        self._line = line or self._line
        result = record.result
        newest = {"loss": result.loss, "grad_norm": result.grad_norm, "learning_rate": result.learning_rate}
        self._newest = "  ".join(_figures(self._line | newest | result.metrics).values())
        self._progress.update(self._task, completed=record.step)

    def close(self) -> None:
        """Remove the bar."""
        self._open.close()

    def _render(self) -> Any:
        from rich.console import Group

        if not self._line:
            self._newest = f"{self._awaited}, {duration(time.monotonic() - self._started)}"
        self._figures.plain = f"  {work_at_hand() or self._newest}"
        return Group(self._progress, self._figures)

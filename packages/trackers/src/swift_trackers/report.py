"""`report.html`: the run's curves and facts in one file, for any browser, without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from swift import __version__
from swift.contracts import Run, RunSummary, StepRecord
from swift.files import replace_file
from swift.hookspecs import hookimpl
from swift.observers import chart_script, charts_of, mfu_of, next_commands, setup_facts, unusable_samples
from swift.observers.lines import EVAL_PREFIX, MEMORY, RANKS, Line, Meter
from swift.observers.text import count, duration, figure, label
from swift.train import REPORT_FILE

if TYPE_CHECKING:
    from jinja2 import Template

_DATA_BLOCK = re.compile(r'<script type="application/json" id="run-data">(.*?)</script>', re.DOTALL)


class ReportObserver:
    """Writes the report when the run starts, at every evaluation and checkpoint, and when it ends.

    A resumed run continues the curves of the report in its folder. If the report cannot be written, the run goes on
    and the user is warned once.
    """

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._checkpoints: list[dict[str, Any]] = []
        self._begun = False
        self._failed = False

    @hookimpl
    def swift_run_start(self, run: Run) -> None:
        self._meter = Meter(run.config.logging.steps, mfu=mfu_of(run))
        sections = run.config.model_dump(mode="json")
        self._config = yaml.safe_dump(sections, sort_keys=False, allow_unicode=True)
        path = run.folder / REPORT_FILE
        if path.exists():
            earlier = read_report(path)
            self._lines, self._checkpoints = earlier["lines"], earlier["checkpoints"]
        self._write(run, None)

    @hookimpl
    def swift_step_end(self, run: Run, record: StepRecord) -> None:
        if not self._begun:
            self._lines = [line for line in self._lines if line["step"] < record.step]
            self._checkpoints = [saved for saved in self._checkpoints if saved["step"] < record.step]
            self._begun = True
        line = self._meter.take(record)
        if line is not None:
            self._lines.append(line)
        if record.evaluation is not None:
            self._write(run, None)

    @hookimpl
    def swift_checkpoint_saved(self, run: Run, step: int, folder: Path) -> None:
        self._checkpoints.append({"step": step, "folder": folder.name})
        self._write(run, None)

    @hookimpl
    def swift_run_end(self, run: Run, summary: RunSummary) -> None:
        line = self._meter.rest()
        if line is not None:
            self._lines.append(line)
        self._write(run, summary)

    def _write(self, run: Run, summary: RunSummary | None) -> None:
        try:
            page = render_report(run, self._config, self._lines, self._checkpoints, summary)
            replace_file(run.folder / REPORT_FILE, page)
        except OSError as error:
            if not self._failed:
                run.say(f"Cannot write {run.folder / REPORT_FILE}: {error.strerror}. Training continues.")
            self._failed = True


def render_report(
    run: Run, config: str, lines: list[Line], checkpoints: list[dict[str, Any]], summary: RunSummary | None = None
) -> str:
    """Return the whole page, with all settings as text. Without a summary, the status is `running`."""
    last = lines[-1] if lines else {}
    data = {
        "columns": _columns(lines),
        "charts": charts_of(lines, run.config.learning_rate),
        "checkpoints": checkpoints,
    }
    return _template().render(
        name=run.folder.name,
        title=f"{run.config.objective.name} of {run.folder.parent.name or run.folder.name}",
        status=summary.status if summary else "running",
        message=summary.message if summary else "",
        written=f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        version=__version__,
        figures=key_figures(lines, run.total_steps, summary),
        facts={label(name): value for name, value in setup_facts(run).items()},
        plugins=dict(run.plugins),
        commands=next_commands(run, summary) if summary else [],
        checkpoints=_checkpoint_rows(checkpoints, lines, summary),
        unusable=unusable_samples(run),
        pages=_pages(run.folder),
        config=config,
        steps=f"{last.get('step', 0):,} of {run.total_steps:,} steps",
        data=data,
        style=_asset("report.css"),
        script=chart_script() + _asset("report.js"),
    )


def key_figures(lines: list[Line], total_steps: int, summary: RunSummary | None) -> list[tuple[str, str, str]]:
    """(name, value, remark) for the strip at the top of the page."""
    if not lines:
        return [("Steps", f"0 of {total_steps:,}", "")]
    first, last = lines[0], lines[-1]
    seconds = summary.seconds if summary else last["elapsed_time"]
    figures = [
        ("Steps", f"{last['step']:,}", f"of {total_steps:,} · epoch {last['epoch']:.2f}"),
        ("Training loss", figure(last["loss"]), f"from {figure(first['loss'])} at step {first['step']:,}"),
    ]
    evaluated = [line for line in lines if line.get(f"{EVAL_PREFIX}loss") is not None]
    if evaluated:
        best = min(evaluated, key=lambda line: line[f"{EVAL_PREFIX}loss"])
        figures.append(("Best evaluation loss", figure(best[f"{EVAL_PREFIX}loss"]), f"at step {best['step']:,}"))
    tokens = f"{count(summary.tokens)} tokens" if summary else f"{duration(last['remaining_time'])} left"
    speed = (summary.tokens / summary.seconds if summary.seconds else 0.0) if summary else last["tokens_per_second"]
    figures += [
        ("Time", duration(seconds), tokens),
        ("Tokens per second", count(speed), f"{last['padding_fraction']:.1%} padding"),
    ]
    memory = max(line[MEMORY] for line in lines)
    if memory:
        figures.append(("Peak memory", f"{memory:.1f} GiB", "per device"))
    return figures


def read_report(path: Path) -> dict[str, Any]:
    """Return the logged lines and checkpoints in a report; both are empty where swift did not write the file."""
    found = _DATA_BLOCK.search(path.read_text(encoding="utf-8"))
    data = json.loads(found[1]) if found else {"columns": {}, "checkpoints": []}
    columns: Mapping[str, list[Any]] = data["columns"]
    rows = zip(*columns.values(), strict=True)
    lines = [dict(zip(columns, row, strict=True)) for row in rows]
    return {"lines": lines, "checkpoints": data["checkpoints"]}


def _columns(lines: list[Line]) -> dict[str, list[Any]]:
    """Return columns, with None where a line lacks the name: a tenth of the size of rows."""
    names = dict.fromkeys(name for line in lines for name in line if name != RANKS)
    return {name: [line.get(name) for line in lines] for name in names}


def _checkpoint_rows(
    checkpoints: Iterable[Mapping[str, Any]], lines: list[Line], summary: RunSummary | None
) -> list[dict[str, str]]:
    by_step = {line["step"]: line for line in lines}
    marked = {"last": summary.last_checkpoint, "best": summary.best_checkpoint} if summary else {}
    remarks = {path.name: remark for remark, path in marked.items() if path is not None}
    rows = []
    for saved in checkpoints:
        line = by_step.get(saved["step"], {})
        rows.append(
            {
                "folder": saved["folder"],
                "step": f"{saved['step']:,}",
                "loss": figure(line.get("loss")),
                "eval_loss": figure(line.get(f"{EVAL_PREFIX}loss")),
                "remark": remarks.get(saved["folder"], ""),
            }
        )
    return rows


def _pages(folder: Path) -> list[str]:
    """Return the pages that plugins have written into folders of the run, as links from the report."""
    return sorted(page.relative_to(folder).as_posix() for page in folder.glob("*/*.html"))


def _asset(name: str) -> str:
    return files("swift_trackers").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_asset(REPORT_FILE))

"""Read-only routes about runs."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from swift.observers import charts_of
from swift.train import REPORT_FILE
from swift_ui.looking import rounds, view
from swift_ui.looking.choices import find_choices
from swift_ui.looking.events import RunEvents
from swift_ui.looking.index import NotFound, RunIndex, file_in
from swift_ui.looking.lines import MOST_POINTS, RunLines
from swift_ui.looking.log import log_part
from swift_ui.looking.state import StateReader

MOST_COMPARED = 24
MOST_KEPT = 32
"""Runs whose lines are kept in memory."""
PAGE_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
)
"""Policy of pages in runs' folders: their scripts have no origin, no cookie and no network."""


class RunReader:
    """Index, states and lines of runs, shared by all requests."""

    def __init__(self, roots: tuple[Path, ...]) -> None:
        self.index = RunIndex(roots)
        self.states = StateReader()
        self._lines: OrderedDict[Path, RunLines] = OrderedDict()
        self._lock = Lock()

    def lines(self, folder: Path) -> RunLines:
        """Return the lines of a run, up to date."""
        with self._lock:
            kept = self._lines.setdefault(folder, RunLines(folder))
            self._lines.move_to_end(folder)
            while len(self._lines) > MOST_KEPT:
                self._lines.popitem(last=False)
        kept.update()
        return kept

    def first_lines(self, folder: Path) -> tuple[RunLines, bool]:
        """Return lines of a run to show at once, and whether these are all."""
        with self._lock:
            known = folder in self._lines
        found = None if known else RunLines.at_a_glance(folder)
        return (self.lines(folder), True) if found is None else (found, False)

    def rows(self) -> list[dict[str, Any]]:
        """Return all runs as rows of the list, the newest first."""
        rows = [self.row(key, folder) for key, folder in self.index.find().items()]
        return sorted(rows, key=lambda row: (row["state"]["started"], row["name"]), reverse=True)

    def row(self, key: str, folder: Path) -> dict[str, Any]:
        """Return a run as a row of the list."""
        state = self.states.state(folder)
        last = next((line for line in reversed(self.states.tail(folder)) if "step" in line), {})
        shown = ("loss", "eval_loss", "tokens_per_second", "remaining_time", "reward")
        figures = {name: last[name] for name in shown if isinstance(last.get(name), int | float)}
        return {
            "key": key,
            **view.title_of(folder),
            "folder": str(folder),
            "state": state.as_json(),
            "figures": figures,
            "facts": self.index.once(folder, lambda: view.short_facts(view.arguments(folder))),
        }


class RunResponse(JSONResponse):
    """A response with content of run files, which may be invalid in JSON: NaN, unpaired surrogates."""

    def render(self, content: Any) -> bytes:
        """Return the content as JSON."""
        return view.as_json(content)


def reader(request: Request) -> RunReader:
    """Return the application's reader of runs."""
    found: RunReader = request.app.state.reader
    return found


def run_of(request: Request) -> Path:
    """Return the folder of a request's run; raise `NotFound` if it does not exist."""
    return reader(request).index.folder(request.path_params["key"])


def routes() -> list[Route]:
    """Return these routes."""
    of_run = "/api/runs/{key}"
    return [
        Route("/api/runs", _runs),
        Route("/api/choices", _choices),
        Route("/api/compare", _compare),
        Route(of_run, _run),
        Route(f"{of_run}/series", _series),
        Route(f"{of_run}/events", _events),
        Route(f"{of_run}/log", _log),
        Route(f"{of_run}/config", _read(view.configuration)),
        Route(f"{of_run}/samples", _read(view.samples)),
        Route(f"{of_run}/rounds", _read(lambda folder: {"rounds": rounds.rounds(folder)})),
        Route(f"{of_run}/rounds/{{number:int}}", _round),
        Route(f"{of_run}/pages/{{name:path}}", _page),
        Route(f"{of_run}/images/{{name:path}}", _image),
    ]


def _runs(request: Request) -> Response:
    runs = reader(request)
    return RunResponse({"runs": runs.rows(), "roots": [str(root) for root in runs.index.roots]})


def _choices(request: Request) -> Response:
    runs = reader(request)
    found = find_choices(runs.rows(), Path.cwd(), runs.index.roots)
    return RunResponse({kind: [asdict(each) for each in choices] for kind, choices in found.items()})


def _run(request: Request) -> Response:
    folder = run_of(request)
    runs = reader(request)
    state = runs.states.state(folder)
    summary = next((line for line in runs.states.tail(folder)[-1:] if "status" in line), None)
    return RunResponse({"key": request.path_params["key"], **view.run_view(folder, state, summary)})


def _series(request: Request) -> Response:
    folder = run_of(request)
    first, last = _number(request, "first"), _number(request, "last")
    runs = reader(request)
    lines, whole = runs.first_lines(folder) if "glance" in request.query_params else (runs.lines(folder), True)
    peak = view.arguments(folder).get("optim.learning_rate")
    return RunResponse(
        {
            "whole": whole,
            "position": lines.position,
            "charts": lines.charts(peak if isinstance(peak, float) else None),
            "series": lines.series(
                first=-math.inf if first is None else first, last=math.inf if last is None else last
            ),
            "ranks": {"step": lines.ranks_step, "rows": lines.ranks},
            "last": lines.last,
            "first": lines.first,
        }
    )


def _events(request: Request) -> Response:
    folder = run_of(request)
    known = request.headers.get("last-event-id") or request.query_params.get("after")
    events = RunEvents(folder, reader(request).states, known)
    return StreamingResponse(aiter(events), media_type="text/event-stream")


def _log(request: Request) -> Response:
    return RunResponse(log_part(run_of(request), _number(request, "after"), _number(request, "before")))


def _read(content_of: Callable[[Path], dict[str, Any]]) -> Callable[[Request], Response]:
    """Return the handler of what is read from the folder of a run."""
    return lambda request: RunResponse(content_of(run_of(request)))


def _round(request: Request) -> Response:
    return RunResponse(rounds.completions(run_of(request), request.path_params["number"]))


def _page(request: Request) -> Response:
    folder, name = run_of(request), request.path_params["name"]
    if name not in [REPORT_FILE, *view.pages(folder)]:
        raise NotFound("This run does not have this page.")
    headers = {"content-security-policy": PAGE_POLICY, "x-frame-options": "SAMEORIGIN"}
    return FileResponse(file_in(folder, name), media_type="text/html; charset=utf-8", headers=headers)


def _image(request: Request) -> Response:
    folder, name = run_of(request), request.path_params["name"]
    if name not in view.images(folder):
        raise NotFound("This run does not have this image.")
    return FileResponse(file_in(folder, name))


def _compare(request: Request) -> Response:
    keys = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST_COMPARED]
    runs = reader(request)
    folders = [runs.index.folder(key) for key in keys]
    most = max(200, MOST_POINTS // max(1, len(keys)))
    rows = []
    names: dict[str, None] = {}
    for key, folder in zip(keys, folders, strict=True):
        lines = runs.lines(folder)
        names |= dict.fromkeys(lines.columns)
        rows.append({**runs.row(key, folder), "series": lines.series(most=most)})
    settings = [view.settings_of(view.arguments(folder)) for folder in folders]
    charts = charts_of([dict.fromkeys(names, 1.0)])
    return RunResponse({"runs": rows, "charts": charts, "differences": view.differences(settings)})


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 19 else None

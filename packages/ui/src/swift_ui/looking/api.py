"""Requests of the page to look at runs. All of it reads, none of it writes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from swift_ui.looking.index import RunIndex


def routes() -> list[Route]:
    """Return the routes of looking."""
    return [Route("/api/runs", _runs), Route("/api/runs/{key}", _run)]


def _runs(request: Request) -> Response:
    index: RunIndex = request.app.state.index
    return JSONResponse({"runs": [{"key": key, "folder": str(folder)} for key, folder in index.find().items()]})


def _run(request: Request) -> Response:
    index: RunIndex = request.app.state.index
    folder = index.folder(request.path_params["key"])
    return JSONResponse({"key": request.path_params["key"], "folder": str(folder)})

"""The web application: the page and its API, behind authentication."""

from __future__ import annotations

import socket
import webbrowser
from importlib.resources import files
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from swift.errors import SwiftError
from swift.observers import chart_script
from swift_ui import __version__
from swift_ui.acting.api import ActingApi
from swift_ui.guard import PageGuard
from swift_ui.looking.api import RunReader
from swift_ui.looking.api import routes as run_routes
from swift_ui.looking.index import NotFound
from swift_ui.options import UiSettings

STATIC = Path(str(files("swift_ui") / "static"))


def make_app(settings: UiSettings) -> Starlette:
    """Return the application, with the settings and the reader of runs in `app.state`."""
    app = Starlette(
        routes=[
            Route("/", _page),
            Route("/static/charts.js", _charts),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/about", _about),
            *run_routes(),
            *ActingApi(settings).routes(),
        ],
        middleware=[Middleware(PageGuard, settings=settings)],
        exception_handlers={SwiftError: _refused},
    )
    app.state.settings = settings
    app.state.reader = RunReader(settings.roots)
    return app


def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


def _charts(request: Request) -> Response:
    """Return the chart script of core's report as a module."""
    exported = "\nexport const { Charts, number, percent, placeAt } = swiftCharts;\n"
    return Response(chart_script() + exported, media_type="text/javascript")


def _about(request: Request) -> Response:
    settings: UiSettings = request.app.state.settings
    roots = [str(root) for root in settings.roots]
    return JSONResponse({"version": __version__, "roots": roots, "trust_remote_code": settings.trust_remote_code})


def _refused(request: Request, error: Exception) -> Response:
    """Return the error message of the command line."""
    assert isinstance(error, SwiftError)
    content = {"error": {"message": error.message, "hint": error.hint}}
    return JSONResponse(content, 404 if isinstance(error, NotFound) else 400)


def serve(settings: UiSettings, listening: socket.socket, *, show: bool = False) -> None:
    """Serve requests until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        make_app(settings),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    if show:
        webbrowser.open(settings.address)
    uvicorn.Server(config).run(sockets=[listening])

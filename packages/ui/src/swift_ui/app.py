"""The application: routes of looking, routes of acting, and the page itself, behind the guard."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from swift.errors import SwiftError
from swift.runs import chart_script
from swift_ui import __version__
from swift_ui.acting.api import routes as routes_of_acting
from swift_ui.guard import PageGuard
from swift_ui.looking.api import RunLooker
from swift_ui.looking.api import routes as routes_of_looking
from swift_ui.looking.missing import NotThere
from swift_ui.settings import UiSettings

STATIC = Path(str(files("swift_ui") / "static"))


def make_app(settings: UiSettings) -> Starlette:
    """Return the whole server: `app.state.settings` is what it was started with, `app.state.looker` knows the runs."""
    app = Starlette(
        routes=[
            Route("/", _page),
            Route("/static/charts.js", _charts),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/about", _about),
            *routes_of_looking(),
            *routes_of_acting(settings),
        ],
        middleware=[Middleware(PageGuard, settings=settings)],
        exception_handlers={SwiftError: _refusal, NotThere: _not_there},
    )
    app.state.settings = settings
    app.state.looker = RunLooker(settings.roots)
    return app


def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


def _charts(request: Request) -> Response:
    """Answer with the script that core's report draws its charts with, as a module."""
    exported = "\nexport const { Charts, number, percent, placeAt } = swiftCharts;\n"
    return Response(chart_script() + exported, media_type="text/javascript")


def _about(request: Request) -> Response:
    settings: UiSettings = request.app.state.settings
    return JSONResponse(
        {
            "version": __version__,
            "roots": [str(root) for root in settings.roots],
            "trust_remote_code": settings.trust_remote_code,
        }
    )


def _refusal(request: Request, error: Exception) -> Response:
    """Answer with the sentences that the command line would print."""
    assert isinstance(error, SwiftError)
    return JSONResponse({"error": {"message": error.message, "hint": error.hint}}, 400)


def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, NotThere)
    return JSONResponse({"error": {"message": error.message, "hint": error.hint}}, 404)

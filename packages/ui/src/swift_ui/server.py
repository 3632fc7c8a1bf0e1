"""Runs the application until it is interrupted."""

from __future__ import annotations

import socket
import webbrowser

import uvicorn

from swift_ui.app import make_app
from swift_ui.settings import UiSettings


def serve(settings: UiSettings, listening: socket.socket, *, show: bool = False) -> None:
    """Answer requests until SIGINT or SIGTERM."""
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

"""Requests of the page to have something done."""

from __future__ import annotations

from starlette.routing import Route


def routes() -> list[Route]:
    """Return the routes of acting."""
    return []

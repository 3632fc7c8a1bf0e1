"""Runs of several processes, forked from this one: the conformance kit's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swift_testing.crew import run_jobs, succeeded

__all__ = ["on_processes", "succeeded"]


def on_processes(size: int, *cases: Callable[[], Any], fresh: bool = False) -> list[list[Any]]:
    """Each case's answers by rank; an exception is an answer too. With `fresh` each gets processes of its own."""
    return run_jobs(size, cases, fresh=fresh)

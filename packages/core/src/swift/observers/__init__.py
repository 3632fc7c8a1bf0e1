"""Observers: what a run prints and logs, and the report with its charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.observers.jsonl import LOGGING_FILE as LOGGING_FILE
    from swift.observers.report import REPORT_FILE as REPORT_FILE

__getattr__ = lazy_names(
    __name__,
    {
        "jsonl": "LOGGING_FILE",
        "report": "REPORT_FILE",
    },
)

"""Made-up runs for observers."""

from __future__ import annotations

from observed_runs import drive, make_record, make_run, make_summary, measured, said, terminal

__all__ = ["drive", "make_record", "make_run", "make_summary", "measured", "said", "terminal"]

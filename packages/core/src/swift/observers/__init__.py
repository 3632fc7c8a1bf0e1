"""Observers of every run, and what observers show: logged lines, charts and facts of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.observers.charts import NOT_CHARTED as NOT_CHARTED
    from swift.observers.charts import chart_script as chart_script
    from swift.observers.charts import charts_of as charts_of
    from swift.observers.facts import next_commands as next_commands
    from swift.observers.facts import setup_facts as setup_facts
    from swift.observers.facts import unusable_samples as unusable_samples
    from swift.observers.jsonl import LOGGING_FILE as LOGGING_FILE
    from swift.observers.lines import mfu_of as mfu_of

__getattr__ = lazy_names(__name__)

"""The training loop, and the folder of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.train.job import Job as Job
    from swift.train.loop import Loop as Loop
    from swift.train.loop import train as train
    from swift.train.prepare import open_job as open_job
    from swift.train.run_folder import ARGS_FILE as ARGS_FILE
    from swift.train.run_folder import CONFIG_FILE as CONFIG_FILE
    from swift.train.run_folder import LOCK_FILE as LOCK_FILE
    from swift.train.run_folder import REPORT_FILE as REPORT_FILE
    from swift.train.time_breakdown import measured_at_any_cost as measured_at_any_cost

__getattr__ = lazy_names(__name__)

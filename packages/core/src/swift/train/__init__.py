"""The training loop, and the folder of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.train.run_folder import REPORT_FILE as REPORT_FILE
    from swift.train.run_folder import resolved_config as resolved_config

__getattr__ = lazy_names(
    __name__,
    {
        "run_folder": "REPORT_FILE resolved_config",
    },
)

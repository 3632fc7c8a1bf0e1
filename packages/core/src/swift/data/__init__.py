"""Data: from the rows of files to the samples of each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.data.global_segments import GlobalSegments as GlobalSegments
    from swift.data.pipeline import prepare_data as prepare_data

__getattr__ = lazy_names(
    __name__,
    {
        "global_segments": "GlobalSegments",
        "pipeline": "prepare_data",
    },
)

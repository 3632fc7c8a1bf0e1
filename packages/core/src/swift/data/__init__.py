"""Data: from the rows of files to the samples of each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.data.sources.dataset_info import DATASET_INFO_FILE as DATASET_INFO_FILE

__getattr__ = lazy_names(
    __name__,
    {
        "sources.dataset_info": "DATASET_INFO_FILE",
    },
)

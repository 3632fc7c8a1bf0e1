"""Data: from files to batches of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.data.global_segments import GlobalSegments as GlobalSegments
    from swift.data.store import SampleSet as SampleSet
    from swift.data.template import ChatTemplate as ChatTemplate

__getattr__ = lazy_names(
    __name__,
    {
        "global_segments": "GlobalSegments",
        "store": "SampleSet",
        "template": "ChatTemplate",
    },
)

"""Models: where they come from, what their weights are called, which of them are trained and in which precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.models.media_processor import MediaProcessor as MediaProcessor
    from swift.models.media_processor import without_video_processor as without_video_processor
    from swift.models.source import HfSource as HfSource
    from swift.models.source import open_source as open_source
    from swift.models.tuners import initial_adapter as initial_adapter

__getattr__ = lazy_names(
    __name__,
    {
        "media_processor": "MediaProcessor without_video_processor",
        "source": "HfSource open_source",
        "tuners": "initial_adapter",
    },
)

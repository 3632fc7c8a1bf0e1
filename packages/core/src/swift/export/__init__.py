"""Exports: from a checkpoint to a folder that others load. The names here are for exporters of other packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.export.plugins import HuggingFaceExporter as HuggingFaceExporter
    from swift.export.run import export_checkpoint as export_checkpoint

__getattr__ = lazy_names(
    __name__,
    {
        "plugins": "HuggingFaceExporter",
        "run": "export_checkpoint",
    },
)

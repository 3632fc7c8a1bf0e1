"""Exports: from a checkpoint to a folder that others load. The names here are for exporters of other packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swift.export.plugins import HuggingFaceExporter

__all__ = ["HuggingFaceExporter"]


def __getattr__(name: str) -> Any:
    """Import the exporter on demand, so that `swift.export.x` alone does not import the rest."""
    if name == "HuggingFaceExporter":
        from swift.export.plugins import HuggingFaceExporter

        return HuggingFaceExporter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

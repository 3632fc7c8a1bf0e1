"""Exports: from a checkpoint to a folder that others load. The names here are for exporters of other packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.export.destination import put_in_place as put_in_place
    from swift.export.plugins import HuggingFaceExporter as HuggingFaceExporter
    from swift.export.precision import export_dtypes as export_dtypes
    from swift.export.precision import main_dtype as main_dtype
    from swift.export.run import export_checkpoint as export_checkpoint
    from swift.export.stored import base_of as base_of
    from swift.export.stored import stored_weights as stored_weights
    from swift.export.stored import write_model_weights as write_model_weights
    from swift.export.writer import ShardedSafetensorsWriter as ShardedSafetensorsWriter
    from swift.export.writer import TensorSpec as TensorSpec

__getattr__ = lazy_names(__name__)

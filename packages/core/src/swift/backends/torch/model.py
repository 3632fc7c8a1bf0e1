"""The model of one process: whole, with its weights, wrapped to return views of micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.models.build import build_view

if TYPE_CHECKING:
    from swift.contracts import ModelSource, Run
    from swift.models.view import ViewModule


def build(run: Run, source: ModelSource) -> ViewModule:
    """Build the model as every backend does that uses transformers' modules unchanged."""
    return build_view(run, source)

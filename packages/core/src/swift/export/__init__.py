"""Exports: from a checkpoint to a folder that others load. The names here are for exporters of other packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.export.generative_reranker import generative_reranker_of as generative_reranker_of
    from swift.export.generative_reranker import pair_template_of as pair_template_of
    from swift.export.generative_reranker import yes_no_tokens as yes_no_tokens
    from swift.export.plugins import HuggingFaceExporter as HuggingFaceExporter

__getattr__ = lazy_names(
    __name__,
    {
        "generative_reranker": "generative_reranker_of pair_template_of yes_no_tokens",
        "plugins": "HuggingFaceExporter",
    },
)

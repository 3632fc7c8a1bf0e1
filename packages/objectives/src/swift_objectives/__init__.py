"""Objectives beyond `pt` and `sft`: preferences, rewards, labels, vectors and rankings, with their encodings.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift_objectives.encodings.classification import MULTI_LABEL as MULTI_LABEL
    from swift_objectives.encodings.classification import REGRESSION as REGRESSION
    from swift_objectives.encodings.classification import SINGLE_LABEL as SINGLE_LABEL
    from swift_objectives.encodings.classification import ClassificationEncoding as ClassificationEncoding
    from swift_objectives.encodings.classification import whole_text as whole_text
    from swift_objectives.encodings.embedding import EmbeddingEncoding as EmbeddingEncoding
    from swift_objectives.encodings.embedding import prompt_text_of as prompt_text_of
    from swift_objectives.encodings.embedding import prompted as prompted
    from swift_objectives.encodings.kto import KtoEncoding as KtoEncoding
    from swift_objectives.encodings.preference import PreferenceEncoding as PreferenceEncoding
    from swift_objectives.encodings.reranker import DOCUMENT_COLUMNS as DOCUMENT_COLUMNS
    from swift_objectives.encodings.reranker import Documents as Documents
    from swift_objectives.encodings.reranker import PairEncoding as PairEncoding
    from swift_objectives.encodings.reranker import RerankerEncoding as RerankerEncoding
    from swift_objectives.encodings.reranker import pair_of as pair_of
    from swift_objectives.encodings.reranker import pair_text as pair_text
    from swift_objectives.encodings.steps import StepEncoding as StepEncoding
    from swift_objectives.encodings.steps import StepSample as StepSample
    from swift_objectives.reranker import GenerativeReranker as GenerativeReranker
    from swift_objectives.reranker import GenerativeRerankerOptions as GenerativeRerankerOptions

__version__ = "0.1.0"

__getattr__ = lazy_names(__name__)

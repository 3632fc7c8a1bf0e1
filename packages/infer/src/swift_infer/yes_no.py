"""Generative rerankers: language models that score a document for a query by their yes and no tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swift.checkpoint import GENERATIVE_RERANKER, is_generative_reranker
from swift.config.sections import DataSection
from swift.contracts import ImagePrompt
from swift.data import SampleEncoder, media_tokens_of, prompt_only
from swift.data.encodings import Sample, Unusable
from swift.errors import DataError
from swift.models import MediaProcessor
from swift_objectives import GenerativeReranker, GenerativeRerankerOptions, pair_of

if TYPE_CHECKING:
    from swift_infer.chat_engine import FoundModel

Content = str | list[dict[str, Any]]
"""Content of a message: a string, or parts, some of which are images."""


class YesNo:
    """Renders pairs of a query and a document as in training, or else as for Qwen3-Reranker."""

    def __init__(self, found: FoundModel, section: DataSection) -> None:
        reranker = reranker_of(found.location.objective)
        self.options = reranker.options
        self.objective = reranker.for_tokenizer(found.source.tokenizer)
        processor = found.source.processor
        images = media_tokens_of(None if processor is None else MediaProcessor(processor, section), section)
        self._encoder = SampleEncoder(found.source.tokenizer, section, self.objective.encoding, images)

    def tokens(self, query: Content, document: Content, source: str) -> ImagePrompt:
        """Return the tokens of the prompt and of yes; query and document may hold images."""
        conversation = prompt_only(query)
        pair = pair_of(conversation, prompt_only(document), self.options.instruction)
        try:
            made = self._encoder.encode(Sample(conversation, others=(pair,), values={"positives": 0.0}), source)
        except Unusable as unusable:
            raise DataError(f"{source}: {unusable.reason}: {unusable.detail}.", hint="Remove the row.") from None
        segment = made.samples[0].segments[0]
        return ImagePrompt.of(segment.input_ids.tolist(), segment.media)


def yes_no_of(found: FoundModel, task_type: str | None, section: DataSection) -> YesNo | None:
    """Return the renderer of pairs; None if the model is not a generative reranker."""
    return YesNo(found, section) if is_generative_reranker(found.location.objective, task_type) else None


def reranker_of(trained: Mapping[str, Any]) -> GenerativeReranker:
    """Return the objective with the options of the run that decide the prompt: instruction, yes and no tokens."""
    kept = ("instruction", "positive_token", "negative_token") if trained.get("name") == GENERATIVE_RERANKER else ()
    options = {name: trained[name] for name in kept if name in trained}
    return GenerativeReranker(GenerativeRerankerOptions.model_validate(options))

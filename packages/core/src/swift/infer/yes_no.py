"""A language model as a reranker: asked whether a document answers a query, and read by its yes and its no."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swift.config.sections import DataSection
from swift.contracts import ImagePrompt
from swift.data.conversation import Unusable, told
from swift.data.encode import SampleEncoder
from swift.data.encodings import Sample
from swift.data.encodings.reranker import pair_of
from swift.data.pipeline import media_tokens
from swift.data.template import ChatTemplate
from swift.errors import DataError, ModelError
from swift.infer.find import GENERATIVE, is_asked
from swift.models.media_processor import MediaProcessor
from swift.models.pair_template import renders_pairs, with_pairs
from swift.objectives.reranker import GenerativeReranker, GenerativeRerankerOptions

if TYPE_CHECKING:
    from swift.infer.chat_engine import FoundModel

Content = str | list[dict[str, Any]]
"""What a message says: a text, or parts of which some are images."""


class YesNo:
    """Asks about pairs of a query and a document as the run of the model did, or else as Qwen3-Reranker is asked."""

    def __init__(self, found: FoundModel, section: DataSection) -> None:
        self.options = options_of(found.location.objective)
        self.objective = GenerativeReranker(self.options).for_tokenizer(found.source.tokenizer)
        processor = found.source.processor
        images = media_tokens(None if processor is None else MediaProcessor(processor, section), section)
        self._encoder = SampleEncoder(found.source.tokenizer, section, self.objective.encoding, images)

    def tokens(self, query: Content, document: Content, place: str) -> ImagePrompt:
        """Return the tokens up to the answer, and the one that says yes; query and document may hold images."""
        asked = told(query)
        pair = pair_of(asked, told(document), self.options.instruction)
        try:
            made = self._encoder.encode(Sample(asked, others=(pair,), values={"positives": 0.0}), place)
        except Unusable as unusable:
            raise DataError(f"{place}: {unusable.reason}: {unusable.detail}.", hint="Leave out the row.") from None
        segment = made.samples[0].segments[0]
        return ImagePrompt.of(segment.input_ids.tolist(), segment.media)


def yes_no_of(found: FoundModel, task_type: str | None, section: DataSection) -> YesNo | None:
    """Return how the model is asked for a yes; None for one that is no generative reranker."""
    return YesNo(found, section) if is_asked(found.location.objective, task_type) else None


def options_of(trained: Mapping[str, Any]) -> GenerativeRerankerOptions:
    """Return the options of the run as far as they say how a document is asked about: every document is."""
    kept = ("instruction", "positive_token", "negative_token") if trained.get("name") == GENERATIVE else ()
    return GenerativeRerankerOptions.model_validate({name: trained[name] for name in kept if name in trained})


def answers_of(reranker: GenerativeReranker, tokenizer: Any) -> tuple[str, str]:
    """Return the tokens that say yes and no, as the vocabulary has them."""
    yes, no = tokenizer.convert_ids_to_tokens(list(reranker.for_tokenizer(tokenizer).candidates))
    return str(yes), str(no)


def pair_template_of(reranker: GenerativeReranker, tokenizer: Any, system: str | None) -> str:
    """Return the tokenizer's chat template, which also renders a query with a document, up to the answer."""
    template = tokenizer.chat_template
    if template is None:
        raise ModelError(
            "A generative reranker is asked in a conversation, and the tokenizer has no chat template.",
            hint="Put a chat_template.jinja next to it.",
        )
    if renders_pairs(str(template)):
        return str(template)
    around = reranker.encoding.around(ChatTemplate(tokenizer, {}), system)
    return with_pairs(str(template), reranker.options.instruction, around)

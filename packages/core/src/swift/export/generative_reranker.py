"""Prompt of a generative reranker: its chat template, and its yes and no tokens, as in training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swift.checkpoint.weights_location import GENERATIVE_RERANKER
from swift.data.template import ChatTemplate
from swift.errors import ModelError
from swift.models.pair_template import renders_pairs, with_pairs
from swift.objectives.reranker import GenerativeReranker, GenerativeRerankerOptions


def generative_reranker_of(trained: Mapping[str, Any]) -> GenerativeReranker:
    """Return the objective with the options of the run that decide the prompt: instruction, yes and no tokens."""
    kept = ("instruction", "positive_token", "negative_token") if trained.get("name") == GENERATIVE_RERANKER else ()
    options = {name: trained[name] for name in kept if name in trained}
    return GenerativeReranker(GenerativeRerankerOptions.model_validate(options))


def yes_no_tokens(reranker: GenerativeReranker, tokenizer: Any) -> tuple[str, str]:
    """Return the yes and no tokens, as strings of the vocabulary."""
    yes, no = tokenizer.convert_ids_to_tokens(list(reranker.for_tokenizer(tokenizer).candidates))
    return str(yes), str(no)


def pair_template_of(reranker: GenerativeReranker, tokenizer: Any, system: str | None) -> str:
    """Return the tokenizer's chat template, extended so that it renders a query with a document."""
    template = tokenizer.chat_template
    if template is None:
        raise ModelError(
            "A generative reranker needs a chat template, but the tokenizer has none.",
            hint="Add a chat_template.jinja to its folder.",
        )
    if renders_pairs(str(template)):
        return str(template)
    around = reranker.encoding.around(ChatTemplate(tokenizer, {}), system)
    return with_pairs(str(template), reranker.options.instruction, around)

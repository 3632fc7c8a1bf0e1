"""Serving a language model as a reranker: its chat template, and its yes and no tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swift.models import read_config, stored_yes_no_tokens
from swift.terminal import waiting
from swift_infer.servers.program import cache_folder

if TYPE_CHECKING:
    from swift.checkpoint import WeightsLocation


@dataclass(frozen=True)
class YesNoQuestion:
    """Prompt and tokens of a generative reranker."""

    template: Path
    """A chat template that renders a query with a document."""
    tokens: tuple[str, str]
    """The yes and no tokens, as strings of the vocabulary."""


def yes_no_question(location: WeightsLocation, folder: Path, *, say: Callable[[str], None]) -> YesNoQuestion:
    """Return the prompt of training, of the folder's own template, or else of Qwen3-Reranker."""
    with waiting("Reading the tokenizer"):
        from swift.models import open_source
        from swift_infer.yes_no import reranker_of

        section = location.weights.model_copy(update={"path": str(folder)})
        tokenizer = open_source(section, say=say).tokenizer
        reranker = reranker_of(location.objective)
        text = reranker.pair_template(tokenizer, location.system)
        stored = None if location.objective else stored_yes_no_tokens(read_config(folder))
        return YesNoQuestion(_cached(text), stored or reranker.yes_no_tokens(tokenizer))


def _cached(text: str) -> Path:
    """Write a template into the user's cache, where the server reads it."""
    file = cache_folder() / f"pairs-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jinja"
    file.write_text(text, encoding="utf-8")
    return file

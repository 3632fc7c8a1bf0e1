"""Serving a language model as a reranker: its chat template, and its yes and no tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swift.models.config_file import read_config
from swift.models.pair_template import stored_tokens
from swift.servers.program import cache_folder
from swift.terminal import waiting

if TYPE_CHECKING:
    from swift.infer.find import WeightsLocation


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
        from swift.infer.yes_no import options_of
        from swift.models.source import open_source
        from swift_objectives import GenerativeReranker

        section = location.weights.model_copy(update={"path": str(folder)})
        tokenizer = open_source(section, say=say).tokenizer
        reranker = GenerativeReranker(options_of(location.objective))
        text = reranker.pair_template(tokenizer, location.system)
        stored = None if location.objective else stored_tokens(read_config(folder))
        return YesNoQuestion(_cached(text), stored or reranker.yes_no_tokens(tokenizer))


def _cached(text: str) -> Path:
    """Write a template into the user's cache, where the server reads it."""
    file = cache_folder() / f"pairs-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jinja"
    file.write_text(text, encoding="utf-8")
    return file

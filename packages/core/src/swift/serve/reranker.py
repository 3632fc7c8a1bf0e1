"""A language model served as a reranker: how it is asked about a document, and the two tokens that it answers with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swift.models.config_file import read_config
from swift.models.pair_template import stored_tokens
from swift.terminal import waiting

if TYPE_CHECKING:
    from swift.infer.find import WeightsLocation


@dataclass(frozen=True)
class YesNoQuestion:
    """How an engine asks a generative reranker."""

    template: Path
    """A chat template that renders a query with a document."""
    answers: tuple[str, str]
    """The tokens that say yes and no, as the vocabulary has them."""


def asked_for_scores(place: WeightsLocation, folder: Path, *, say: Callable[[str], None]) -> YesNoQuestion:
    """Return how training asked the model, or else how Qwen3-Reranker is asked; a folder's template may say it too."""
    with waiting("Reading the tokenizer"):
        from swift.infer.yes_no import answers_of, options_of, pair_template_of
        from swift.models.source import open_source
        from swift.objectives.reranker import GenerativeReranker

        section = place.weights.model_copy(update={"path": str(folder)})
        tokenizer = open_source(section, say=say).tokenizer
        reranker = GenerativeReranker(options_of(place.objective))
        text = pair_template_of(reranker, tokenizer, place.system)
        answers = None if place.objective else stored_tokens(read_config(folder))
        return YesNoQuestion(_kept(text), answers or answers_of(reranker, tokenizer))


def _kept(text: str) -> Path:
    """Return a file with the text, in the user's cache: a server reads it when it starts."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "swift" / "serve"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"pairs-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jinja"
    file.write_text(text, encoding="utf-8")
    return file

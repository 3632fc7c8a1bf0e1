"""Serving a language model that scores texts: its chat template, and the two tokens whose logits it compares."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from swift.errors import ModelError
from swift.models import read_config, stored_yes_no_tokens
from swift.terminal import waiting
from swift_infer.servers.program import cache_folder

if TYPE_CHECKING:
    from swift.checkpoint import WeightsLocation
    from swift.contracts import Objective


def served_scores(
    objective: Objective, location: WeightsLocation, folder: Path, *, say: Callable[[str], None]
) -> tuple[Path, tuple[str, str]]:
    """Return the chat template, as in training or the folder's own, and the two tokens."""
    with waiting("Reading the tokenizer"):
        from swift.models import open_source

        section = location.weights.model_copy(update={"path": str(folder)})
        tokenizer = open_source(section, say=say).tokenizer
        served = objective.served_scores(tokenizer, location.system)
    if served is None:
        raise ModelError(
            f"No server can compute the scores of the objective {objective.name}.",
            hint=f"Type: swift infer {folder} --dataset FILE",
        )
    stored = None if location.objective else stored_yes_no_tokens(read_config(folder))
    return _cached(served.template), stored or served.tokens


def _cached(text: str) -> Path:
    """Write a template into the user's cache, where the server reads it."""
    file = cache_folder() / f"pairs-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jinja"
    file.write_text(text, encoding="utf-8")
    return file

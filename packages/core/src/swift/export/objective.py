"""Files that an objective adds to an export: they say how the inputs of the model are made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.checkpoint.checksums import write_json
from swift.checkpoint.weights_location import GENERATIVE_RERANKER
from swift.errors import ExportError
from swift.models.config_file import CONFIG
from swift.models.pair_template import TOKENS_KEY, with_pairs
from swift.models.sentence_files import SETTINGS, leave_lengths, stored_prompts, write_prompts
from swift.models.tokenizer import LARGEST_TEMPLATE, TEMPLATE
from swift.untrusted import read_json_object, read_text

_RERANKER = "reranker"
_PROMPTS = {"query": "query_prompt", "document": "document_prompt"}
"""Name of a prompt for sentence-transformers → option of the objective that it was trained with."""


def add_files_of_objective(
    folder: Path, objective: Mapping[str, Any], *, model: Path | None, system: str | None = None
) -> None:
    """Write into an export how its inputs were made in training; those of the `model` folder where no run says it."""
    if (folder / SETTINGS).is_file():
        known = {} if objective or model is None else stored_prompts(model)
        given = {name: str(objective[option]) for name, option in _PROMPTS.items() if objective.get(option)}
        write_prompts(folder, {**known, **given})
        if objective.get("normalize") is False:
            leave_lengths(folder)
    if objective.get("name") == _RERANKER:
        _add_pair_template(folder, objective.get("instruction"))
    if objective.get("name") == GENERATIVE_RERANKER and (folder / CONFIG).is_file():
        _add_yes_and_no(folder, objective, system)


def _add_pair_template(folder: Path, instruction: str | None) -> None:
    """Let the chat template render a query with a document, as sentence-transformers and vLLM ask for it."""
    if (folder / CONFIG).is_file():  # an adapter has no tokenizer next to it
        (folder / TEMPLATE).write_text(with_pairs(_template_of(folder), instruction), encoding="utf-8")


def _add_yes_and_no(folder: Path, objective: Mapping[str, Any], system: str | None) -> None:
    """Let the chat template ask a language model about a document as training did, and name its two answers."""
    from transformers import AutoTokenizer

    from swift.export.generative_reranker import generative_reranker_of, pair_template_of, yes_no_tokens

    tokenizer = AutoTokenizer.from_pretrained(folder)
    reranker = generative_reranker_of(objective)
    (folder / TEMPLATE).write_text(pair_template_of(reranker, tokenizer, system), encoding="utf-8")
    config = read_json_object(folder / CONFIG, ExportError)
    config[TOKENS_KEY] = list(reversed(yes_no_tokens(reranker, tokenizer)))
    write_json(folder / CONFIG, config)


def _template_of(folder: Path) -> str | None:
    if (folder / TEMPLATE).is_file():
        return read_text(folder / TEMPLATE, ExportError, limit=LARGEST_TEMPLATE)
    settings = folder / "tokenizer_config.json"
    template = read_json_object(settings, ExportError).get("chat_template") if settings.is_file() else None
    return template if isinstance(template, str) else None

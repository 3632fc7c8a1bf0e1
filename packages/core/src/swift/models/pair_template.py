"""Chat templates that render a query and a document, as sentence-transformers and vLLM ask a reranker for a score.

Both hand the template two messages, of the roles `query` and `document`. vLLM gives it an `instruction` of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.errors import ExportError, ModelError
from swift.models.config_file import CONFIG
from swift.models.tokenizer import LARGEST_TEMPLATE, TEMPLATE
from swift.untrusted import read_json_object, read_text

TOKENS_KEY = "classifier_from_token"
"""Key of config.json with the tokens that say no and yes, by vLLM's name."""

_PAIR = """\
{%- if messages and messages[0]['role'] in ('query', 'document') -%}
{%- set pair = namespace(query='', document='') -%}
{%- for message in messages -%}
{%- set content = message['content'] if message['content'] is string else message['content'][0]['text'] -%}
{%- if message['role'] == 'query' -%}
{%- set pair.query = content -%}
{%- else -%}
{%- set pair.document = content -%}
{%- endif -%}
{%- endfor -%}
{%- set instruction = instruction if instruction is defined and instruction else INSTRUCTION -%}
{{- BEFORE -}}
{%- if instruction -%}{{ '<Instruct>: ' + instruction + '\\n' }}{%- endif -%}
{{ '<Query>: ' + pair.query + '\\n<Document>: ' + pair.document + AFTER }}
{%- else -%}
"""
_END = "{% endif %}"
_NO_TEMPLATE = "{{ raise_exception('This template is for a query with a document, not for conversations.') }}"
_ROLES = tuple(re.compile(rf"""['"]{role}['"]""") for role in ("query", "document"))


def renders_pairs(template: str) -> bool:
    """Return whether a chat template knows the roles of a query and of a document."""
    return all(role.search(template) for role in _ROLES)


def with_pairs(template: str | None, instruction: str | None, around: tuple[str, str] | None = None) -> str:
    """Return the chat template, which renders a query with a document as well, as `RerankerEncoding` joins them.

    `around` is what a generative reranker reads before and after that; others read the token that ends a text.
    """
    if template is not None and renders_pairs(template):
        return template
    before, after = ('""', "(eos_token or '')") if around is None else map(_literal, around)
    parts = {"INSTRUCTION": _literal(instruction or ""), "BEFORE": before, "AFTER": after}
    pair = re.sub("|".join(parts), lambda found: parts[found[0]], _PAIR.rstrip())
    return pair + (_NO_TEMPLATE if template is None else template.removesuffix("\n")) + _END


def template_of_export(folder: Path) -> str | None:
    """Return the chat template of an export; None where it has none."""
    if (folder / TEMPLATE).is_file():
        return read_text(folder / TEMPLATE, ExportError, limit=LARGEST_TEMPLATE)
    settings = folder / "tokenizer_config.json"
    template = read_json_object(settings, ExportError).get("chat_template") if settings.is_file() else None
    return template if isinstance(template, str) else None


def write_pair_template(folder: Path, template: str, tokens: tuple[str, str] | None = None) -> None:
    """Write the chat template of an export, and the `tokens` that say yes and no for vLLM to find."""
    (folder / TEMPLATE).write_text(template, encoding="utf-8")
    if tokens is not None:
        config = read_json_object(folder / CONFIG, ExportError)
        config[TOKENS_KEY] = [tokens[1], tokens[0]]
        (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def stored_pair_template(folder: Path) -> Path | None:
    """Return the chat template in a model's folder, if it renders a query with a document."""
    template = folder / TEMPLATE
    return template if template.is_file() and renders_pairs(read_text(template, ModelError)) else None


def stored_yes_no_tokens(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the tokens that say yes and no where a config.json names them, as vLLM reads them: no, then yes."""
    named = config.get(TOKENS_KEY)
    if isinstance(named, list) and len(named) == 2 and all(isinstance(each, str) for each in named):
        return named[1], named[0]
    return None


def _literal(text: str) -> str:
    """Return a text as a template writes it between quotes."""
    return json.dumps(text, ensure_ascii=False)

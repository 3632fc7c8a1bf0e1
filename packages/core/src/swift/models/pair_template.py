"""Chat templates that render a query and a document, as sentence-transformers and vLLM ask a reranker for a score.

Both hand the template two messages, of the roles `query` and `document`. A model that was trained on conversations gets
them as the question of a user and the answer to it.
"""

from __future__ import annotations

import re

_TURNED = """\
{%- if messages and messages[0]['role'] == 'query' -%}
{%- set pair = namespace(query='', document='') -%}
{%- for message in messages -%}
{%- set said = message['content'] if message['content'] is string else message['content'][0]['text'] -%}
{%- if message['role'] == 'query' -%}
{%- set pair.query = said -%}
{%- else -%}
{%- set pair.document = said -%}
{%- endif -%}
{%- endfor -%}
{%- set messages = [{'role': 'user', 'content': pair.query}, {'role': 'assistant', 'content': pair.document}] -%}
{%- endif -%}
"""
_ROLES = tuple(re.compile(rf"""['"]{role}['"]""") for role in ("query", "document"))


def renders_pairs(template: str) -> bool:
    """Return whether a chat template knows the roles of a query and of a document."""
    return all(role.search(template) for role in _ROLES)


def with_pairs(template: str) -> str:
    """Return the chat template, which renders a query and a document as a question and its answer as well."""
    return template if renders_pairs(template) else _TURNED.rstrip() + template

"""Chat templates that render a query and a document, as sentence-transformers and vLLM ask a reranker for a score.

Both hand the template two messages, of the roles `query` and `document`. vLLM gives it an `instruction` of its own.
"""

from __future__ import annotations

import json
import re

_PAIR = """\
{%- if messages and messages[0]['role'] in ('query', 'document') -%}
{%- set pair = namespace(query='', document='') -%}
{%- for message in messages -%}
{%- set said = message['content'] if message['content'] is string else message['content'][0]['text'] -%}
{%- if message['role'] == 'query' -%}
{%- set pair.query = said -%}
{%- else -%}
{%- set pair.document = said -%}
{%- endif -%}
{%- endfor -%}
{%- set instruction = instruction if instruction is defined and instruction else INSTRUCTION -%}
{%- if instruction -%}{{ '<Instruct>: ' + instruction + '\\n' }}{%- endif -%}
{{ '<Query>: ' + pair.query + '\\n<Document>: ' + pair.document + (eos_token or '') }}
{%- else -%}
"""
_END = "{% endif %}"
_NO_TEMPLATE = "{{ raise_exception('This template is for a query with a document, not for conversations.') }}"
_ROLES = tuple(re.compile(rf"""['"]{role}['"]""") for role in ("query", "document"))


def renders_pairs(template: str) -> bool:
    """Return whether a chat template knows the roles of a query and of a document."""
    return all(role.search(template) for role in _ROLES)


def with_pairs(template: str | None, instruction: str | None) -> str:
    """Return the chat template, which renders a query with a document as well, as `RerankerEncoding` joins them."""
    if template is not None and renders_pairs(template):
        return template
    pair = _PAIR.rstrip().replace("INSTRUCTION", json.dumps(instruction or ""))
    return pair + (_NO_TEMPLATE if template is None else template.removesuffix("\n")) + _END

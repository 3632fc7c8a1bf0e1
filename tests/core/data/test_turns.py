"""One rendering of a conversation holds the renderings of its beginnings, where the template is seen to allow it."""

from __future__ import annotations

from typing import Any

import mask_cases
import pytest

from swift.data.rendering import Renderer
from swift_testing.tokenizer import byte_tokenizer

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hi\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"},
    {"role": "user", "content": "And now something longer?"},
    {"role": "assistant", "content": "你好 STOP 🎉"},
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": "bye"},
]
LOOKING_AHEAD = {
    "the last message": "{% for message in messages %}{{ message.content }}{% if loop.last %}!{% endif %}{% endfor %}",
    "the number of messages": "{% for message in messages %}{{ message.content ~ messages | length }}{% endfor %}",
    "the next message": "{% for message in messages %}{{ messages[loop.index] }}{{ message.content }}{% endfor %}",
    "the length of the loop": "{% for message in messages %}{{ loop.length }}{% endfor %}",
    "an outer loop from within": (
        "{% for message in messages %}{% for x in [loop.last] %}{{ x }}{% endfor %}{{ message.content }}{% endfor %}"
    ),
    "the prompt within the loop": (
        "{% for message in messages %}{{ message.content }}{{ add_generation_prompt }}{% endfor %}"
    ),
    "a count in the tail": (
        "{% set ns = namespace(n=0) %}{% for message in messages %}{% set ns.n = ns.n + 1 %}{{ message.content }}"
        "{% endfor %}{{ ns.n }}"
    ),
    "another name in the tail": (
        "{% set all = messages[0] %}{% for message in messages %}{{ message.content }}{% endfor %}{{ all.content }}"
    ),
    "all messages under another name": (
        "{% set all = messages %}{% for message in messages %}{{ all[-1].content }}{% endfor %}"
    ),
    "some of the messages": "{% for message in messages if message.role != 'user' %}{{ message.content }}{% endfor %}",
    "messages from the end": "{% for message in messages[::-1] %}{{ message.content }}{% endfor %}",
    "chance": "{% for message in messages %}{{ [1, 2, 3] | random }}{{ message.content }}{% endfor %}",
    "the time": "{{ strftime_now('%f') }}{% for message in messages %}{{ message.content }}{% endfor %}",
    "two loops": (
        "{% for message in messages %}{{ message.role }}{% endfor %}"
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    ),
}


def renderer(template: str, **arguments: Any) -> tuple[Any, Renderer]:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer, Renderer(tokenizer, arguments)


@pytest.mark.parametrize("name", [name for name, template in mask_cases.TEMPLATES.items() if template])
@pytest.mark.parametrize("arguments", [{}, {"enable_thinking": False}])
def test_conversation_prefixes_match_transformers(name: str, arguments: dict[str, Any]) -> None:
    """Beginnings of a conversation are what transformers renders."""
    tokenizer, rendering = renderer(str(mask_cases.TEMPLATES[name]), **arguments)
    tools = [{"type": "function", "function": {"name": "add"}}]
    compared = 0
    for messages in (MESSAGES, MESSAGES[1:], MESSAGES[1:3]):
        for listed in ([], tools):
            more = {"tools": listed or None, "tokenize": False, **arguments}
            try:
                expected = tokenizer.apply_chat_template(messages, **more)
            except Exception as error:
                with pytest.raises(type(error)):
                    rendering.render(messages, listed, "row")
                continue
            whole, until = rendering.render(messages, listed, "row")
            assert whole == expected
            for count in range(1, len(messages) + 1):
                for answering in (False, True):
                    asked = tokenizer.apply_chat_template(messages[:count], add_generation_prompt=answering, **more)
                    assert until(count, answering) == asked
                    compared += 1
    assert compared


@pytest.mark.parametrize("template", LOOKING_AHEAD.values(), ids=LOOKING_AHEAD)
def test_a_template_that_looks_ahead_is_rendered_each_time(template: str) -> None:
    _, rendering = renderer(template)
    assert rendering._turns is None


@pytest.mark.parametrize("name", ["chatml", "llama3", "tools", "phi3", "gemma", "qwen2"])
def test_append_only_templates_are_rendered_once(name: str) -> None:
    """Templates that write message after message are rendered once."""
    _, rendering = renderer(str(mask_cases.TEMPLATES[name]))
    assert rendering._turns is not None

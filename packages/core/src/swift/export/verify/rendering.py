"""Checks that the exported tokenizer renders conversations to the same text, byte for byte, and the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from swift.data.rendering import render_chat
from swift.errors import ExportError

_QUESTION = [{"role": "user", "content": "What is 2 + 3? \u00bfY «esto»? 这个呢？\n\n\tThanks."}]
_TURNS = [*_QUESTION, {"role": "assistant", "content": "It is 5."}, {"role": "user", "content": "And twice that?"}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}
_CALLED = [
    *_QUESTION,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}],
    },
    {"role": "tool", "name": "add", "content": "5"},
]
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "a question": {"messages": _QUESTION},
    "a question, up to the response": {"messages": _QUESTION, "add_generation_prompt": True},
    "several turns": {"messages": _TURNS, "add_generation_prompt": True},
    "a system message": {"messages": [{"role": "system", "content": "Be brief."}, *_TURNS]},
    "tools": {"messages": _QUESTION, "tools": [_TOOL], "add_generation_prompt": True},
    "a tool's result": {"messages": _CALLED, "tools": [_TOOL], "add_generation_prompt": True},
}
"""What a template is asked to render; one that refuses a conversation must refuse it in the export as well."""


def compare_rendering(trained: Any, folder: Path, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """Render with the tokenizer of the training and with that in `folder`; `ExportError` names what differs."""
    from transformers import AutoTokenizer

    exported = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    equal, refused = [], []
    for what, conversation in CONVERSATIONS.items():
        expected, got = _rendered(trained, conversation), _rendered(exported, conversation)
        if expected != got:
            raise _different(what, expected, got)
        if expected is None:
            refused.append(what)
            continue
        wanted_ids = trained(expected, add_special_tokens=False)["input_ids"]
        if wanted_ids != exported(expected, add_special_tokens=False)["input_ids"]:
            raise ExportError(f"The exported tokenizer makes other tokens than training of {what}.", hint=_HINT)
        equal.append(what)
    return {"equal": equal, "refused_by_the_template": refused}


def _rendered(tokenizer: Any, conversation: dict[str, Any]) -> str | None:
    """Return the text; None where the template does not take such a conversation, or there is no template."""
    if tokenizer.chat_template is None:
        return None
    try:
        return render_chat(tokenizer, location="A conversation to compare", **conversation)
    except (TemplateError, TypeError, ValueError, KeyError):
        return None


def _different(what: str, expected: str | None, got: str | None) -> ExportError:
    if expected is None or got is None:
        refuses = "The template that was trained with" if expected is None else "The exported template"
        return ExportError(f"{refuses} does not render {what}, the other one does.", hint=_HINT)
    at = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), min(len(expected), len(got)))
    return ExportError(
        f"The exported chat template renders {what} otherwise than the one that was trained with: at character "
        f"{at + 1} {got[at : at + 30]!r} instead of {expected[at : at + 30]!r}.",
        hint=_HINT,
    )


_HINT = "Look at the tokenizer's files in the export, and at the version of transformers: that of training is noted."

"""Who says what: the role names that data sets use, and the keys under which they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "tool": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "function": "tool",
    "ipython": "tool",
    "function_call": "call",
    "tool_call": "call",
}
"""Role as written → ours. 'call' is the assistant calling a tool, written as a message of its own."""


@dataclass(frozen=True)
class RoleTags:
    """How one data set spells its messages."""

    role_keys: tuple[str, ...] = ("role", "from")
    content_keys: tuple[str, ...] = ("content", "value")
    roles: Mapping[str, str] = field(default_factory=lambda: ROLES)


STANDARD_TAGS = RoleTags()

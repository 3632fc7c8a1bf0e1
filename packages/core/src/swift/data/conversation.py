"""Conversations: lists of messages in the spelling of chat templates, checked for who speaks when."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from swift.untrusted import DEPTH, is_deeper, is_unicode, json_kind, shown

Message = dict[str, Any]
"""What a chat template reads: 'role', 'content', perhaps 'tool_calls' and the data set's own keys."""

_DETAIL = 600
"""Characters that are shown of one sample in a message, whatever it holds."""
_HEAVIEST = 1e6
"""Weight of a message: single precision keeps the others next to it."""
_LOSS_KEYS = ("loss", "loss_scale", "weight", "loss_weight", "train")
"""Keys of a message that weigh its loss: ours and ms-swift's, OpenAI's, LLaMA-Factory's, axolotl's."""
_TRUTH = {"true": 1.0, "false": 0.0}
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Keys of a message that hold the reasoning before its completion, as chat templates call them."""
MEDIA_PARTS = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "video": "video",
    "video_url": "video",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
}
"""Types of the parts of a message that are no text, Hugging Face's and OpenAI's, and the kind of each."""
MediumOf = Callable[[Mapping[str, Any], str], Any]
_MAY_FOLLOW = {
    "": {"system", "user"},
    "system": {"user"},
    "user": {"assistant"},
    "assistant": {"user", "tool"},
    "tool": {"tool", "assistant"},
}

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


class Unusable(Exception):
    """A sample that cannot be learned from. `reason` is what such samples are counted by, `detail` this one's own."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = shown(detail, _DETAIL)


@dataclass(frozen=True)
class Conversation:
    """Messages in order, ending with the assistant's."""

    messages: tuple[Message, ...]
    weights: tuple[float, ...]
    """Per message, how much its text counts where it is learned at all."""
    tools: tuple[Any, ...] = ()
    plain: bool = False
    """The texts may also stand end to end without any template: raw text, prompt and completion."""

    @property
    def has_parts(self) -> bool:
        """Whether any message is more than a text."""
        return any(isinstance(message["content"], list) for message in self.messages)

    @property
    def media(self) -> list[Any]:
        """Return the images, videos and sounds in the messages, in order."""
        if not self.has_parts:
            return []
        parts = [part for message in self.messages for part in parts_of(message)]
        return [held for part in parts if (held := medium_in(part)) is not None]

    @property
    def last_round(self) -> int:
        """Index of the first message after the last one of the user."""
        users = [index for index, message in enumerate(self.messages) if message["role"] == "user"]
        return users[-1] + 1 if users else 0


def parts_of(message: Message) -> list[dict[str, Any]]:
    """Return the parts of a message that has images; none of one that is a text."""
    return message["content"] if isinstance(message["content"], list) else []


def map_parts(message: Message, change: Callable[[dict[str, Any]], Sequence[dict[str, Any]]]) -> Message:
    """Return a message with other parts instead of each; one that is a text stays as it is."""
    parts = parts_of(message)
    return {**message, "content": [new for part in parts for new in change(part)]} if parts else message


def media_part(kind: str, medium: Any = None) -> dict[str, Any]:
    """Return the part of a message that is an image, video or sound; None where a column of the row has it."""
    return {"type": kind, kind: medium}


def medium_in(part: Mapping[str, Any]) -> Any:
    """Return the image, video or sound that a part of a message is; None for a text."""
    return None if part["type"] == "text" else part[part["type"]]


def text_part(text: str) -> dict[str, Any]:
    """Return the part of a message that is a text."""
    return {"type": "text", "text": text}


def strings_of(message: Message) -> list[str]:
    """Return the strings of a message, between which are its images."""
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]


def text_of(message: Message) -> str:
    """Return the text of a message, without its images."""
    return "".join(strings_of(message))


def raw_text(text: str) -> Conversation:
    """Text that nobody says to anybody."""
    if not is_unicode(text):
        raise _not_unicode("the text")
    return Conversation(({"role": "assistant", "content": text},), (1.0,), plain=True)


def checked_text(conversation: Conversation) -> Conversation:
    """Refuse a conversation of one message that says nothing, or what no tokenizer takes."""
    text = text_of(conversation.messages[0])
    if not is_unicode(text):
        raise _not_unicode("the text")
    if not text.strip() and not conversation.has_parts:
        raise Unusable("empty text", "the only message is empty")
    return conversation


def prompt_only(content: str | list[dict[str, Any]], system: str | None = None) -> Conversation:
    """Return a user message, after an optional system message, without a completion."""
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": content})
    if not all(is_unicode(text_of(message)) for message in messages):
        raise _not_unicode("the text")
    return Conversation(tuple(messages), (1.0,) * len(messages))


def read_messages(
    written: object,
    *,
    system: str | None = None,
    tools: object = None,
    tags: RoleTags = STANDARD_TAGS,
    completed: bool = True,
    medium_of: MediumOf | None = None,
) -> Conversation:
    """Messages as a data set writes them: OpenAI's keys, ShareGPT's, or those that `tags` names.

    With `completed` the assistant must have the last word. `medium_of` reads a part that is an image, a video or
    audio; None where it leaves that to a column.
    """
    written = parse_json(written, "messages")
    if not isinstance(written, Sequence) or not written or isinstance(written, str):
        raise Unusable("no messages", "the list of messages is empty or not a list")
    messages: list[Message] = []
    weights: list[float] = []
    for index, each in enumerate(written):
        message, weight = _read_message(each, index, tags, medium_of)
        if message["role"] == "call":
            calls = _called(message["content"], index)
            message = {**message, "role": "assistant", "content": "", "tool_calls": calls}
        if _joins(messages, message):
            # A text and then calls, or several calls, of one assistant's turn that were written one by one.
            if weight != weights[-1]:
                raise Unusable(
                    "malformed message",
                    f"message {index + 1} continues the assistant's turn before it, and has another loss weight",
                )
            calls = [*messages[-1].get("tool_calls", ()), *message["tool_calls"]]
            messages[-1] = {**message, **messages[-1], "tool_calls": calls}
            continue
        messages.append(message)
        weights.append(weight)
    if system:
        if messages[0]["role"] == "system" and messages[0]["content"] != system:
            raise Unusable("two system messages", "one in the column 'system' and another in the messages")
        if messages[0]["role"] != "system":
            messages, weights = [{"role": "system", "content": system}, *messages], [1.0, *weights]
    return checked(Conversation(tuple(messages), tuple(weights), tuple(_read_tools(tools))), completed=completed)


def checked(conversation: Conversation, *, completed: bool = True) -> Conversation:
    """Refuse roles out of order and turns in which the assistant says nothing."""
    before = ""
    for index, message in enumerate(conversation.messages):
        role = message["role"]
        if role not in _MAY_FOLLOW[before]:
            after = f" and follows the {before}'s" if before else " and comes first"
            raise Unusable("roles out of order", f"message {index + 1} is the {role}'s{after}")
        text = text_of(message)
        if not is_unicode(text):
            raise _not_unicode(f"message {index + 1}, the {role}'s,")
        if len(message) > 2:
            _check_values(message, f"message {index + 1}, the {role}'s,")
        if role == "assistant" and not text.strip() and not message.get("tool_calls"):
            if not message.get("reasoning_content"):
                raise Unusable("empty completion", f"message {index + 1}, the assistant's, is empty")
        elif role == "user" and not text.strip() and isinstance(message["content"], str):
            raise Unusable("empty question", f"message {index + 1}, the user's, is empty")
        before = role
    if before != "assistant" and completed:
        raise Unusable("roles out of order", f"the last message is the {before}'s, not the assistant's")
    if conversation.tools:
        _check_values(conversation.tools, "the column 'tools'")
    return conversation


def _check_values(values: object, what: str) -> None:
    """Refuse what a chat template could not write out: it is JSON, of Unicode text."""
    try:
        text = json.dumps(values, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        raise Unusable("malformed message", f"{what} holds a value that JSON does not have") from None
    if not is_unicode(text):
        raise _not_unicode(what)


def _not_unicode(what: str) -> Unusable:
    return Unusable("not Unicode text", f"{what} contains an unpaired surrogate")


def _read_message(written: object, index: int, tags: RoleTags, medium_of: MediumOf | None) -> tuple[Message, float]:
    if type(written) is dict and len(written) == 2:  # most messages by far
        role, content = written.get(tags.role_keys[0]), written.get(tags.content_keys[0])
        if type(role) is str and type(content) is str and role in tags.roles:
            return {"role": tags.roles[role], "content": content}, 1.0
    if not isinstance(written, Mapping):
        raise Unusable("malformed message", f"message {index + 1} is {json_kind(written)}, not an object")
    fields = {key: value for key, value in written.items() if value is not None}
    role_key = next((key for key in tags.role_keys if key in fields), None)
    if role_key is None:
        raise Unusable("malformed message", f"message {index + 1} has no {' or '.join(map(repr, tags.role_keys))}")
    written = fields.pop(role_key)
    role = tags.roles.get(written) if isinstance(written, str) else None
    if role is None:
        raise Unusable("unknown role", f"message {index + 1} has the role {written!r}")
    content_key = next((key for key in tags.content_keys if key in fields), None)
    content = fields.pop(content_key) if content_key else ""
    if role == "assistant" and isinstance(content, list | tuple):
        content = _without_reasoning_and_calls(content, fields, index)
    content = read_content(content, index, medium_of)
    weight = take_weight(fields, role, index)
    message: Message = {"role": role, "content": content, **fields}
    if "tool_calls" in message and (calls := _listed_calls(message.pop("tool_calls"), role, index)):
        message["tool_calls"] = calls
    return message, weight


def _listed_calls(calls: object, role: str, index: int) -> list[Message]:
    """Return the calls in the 'tool_calls' of a message."""
    if role != "assistant":
        raise Unusable("malformed message", f"message {index + 1}, the {role}'s, has tool_calls")
    calls = parse_json(calls, f"the tool calls of message {index + 1}")
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise Unusable(
            "malformed tool call", f"the tool_calls of message {index + 1} are {json_kind(calls)}, not a list"
        )
    return [_tool_call(call, index) for call in calls]


def read_content(content: object, index: int, medium_of: MediumOf | None) -> str | list[dict[str, Any]]:
    """Return a string, or the parts of a message where some of them are images; `index` is its position in the row."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = [_part(part, index, medium_of) for part in content]
        if all(part["type"] == "text" for part in parts):
            return "".join(part["text"] for part in parts)
        return parts
    if isinstance(content, Mapping):
        return json.dumps(content, ensure_ascii=False, default=str)
    raise Unusable("malformed message", f"the content of message {index + 1} is {json_kind(content)}")


def _without_reasoning_and_calls(content: Sequence[Any], fields: Message, index: int) -> list[Any]:
    """Return the parts of a message but LLaMA-Factory's 'reasoning' and 'tool_call', which go into `fields`."""
    held: dict[str, list[str]] = {"reasoning": [], "tool_call": []}
    rest = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind in held and isinstance(part.get("value"), str):
            held[kind].append(part["value"])
        else:
            rest.append(part)
    if held["reasoning"]:
        fields.setdefault("reasoning_content", "".join(held["reasoning"]))
    if held["tool_call"]:
        fields.setdefault("tool_calls", [call for written in held["tool_call"] for call in _called(written, index)])
    return rest


def _part(part: object, index: int, medium_of: MediumOf | None) -> dict[str, Any]:
    """Return one part of a message: text, or media, which are None where a column of the row has them."""
    if isinstance(part, str):
        return text_part(part)
    if isinstance(part, Mapping):
        kind_name = part.get("type")
        if kind_name is None and "text" not in part:
            kind_name = next((key for key in MEDIA_PARTS if key in part), None)
        if isinstance(kind_name, str) and kind_name in MEDIA_PARTS and medium_of is not None:
            kind = MEDIA_PARTS[kind_name]
            return media_part(kind, medium_of(part, kind))
        text = part.get("text", part.get("value") if kind_name == "text" else None)
        if isinstance(text, str):
            return text_part(text)
        which = f"of the type {kind_name!r} with the keys {', '.join(map(str, part)) or 'none'}"
    else:
        which = f"that is {json_kind(part)}"
    raise Unusable("not only text", f"message {index + 1} holds a part {which}: neither text nor media")


def take_weight(fields: Message, role: str, index: int) -> float:
    """Remove the keys about the loss of a message from its `fields`, and return its weight."""
    keys = [key for key in _LOSS_KEYS if key in fields]
    if not keys:
        return 1.0
    weights = {read_weight(fields.pop(key), f"the {key!r} of message {index + 1}", "malformed message") for key in keys}
    if len(weights) > 1:
        raise Unusable("malformed message", f"{' and '.join(map(repr, keys))} of message {index + 1} differ")
    (weight,) = weights
    if weight and role not in ("assistant", "call"):
        raise Unusable(
            "malformed message", f"message {index + 1}, the {role}'s, has a loss; only the assistant's messages can"
        )
    return weight


def read_weight(value: object, what: str, reason: str) -> float:
    """Return a weight of a loss: true, false or a number, or one of these as a string, as CSV files hold it."""
    weight: Any = value
    if isinstance(value, str):
        weight = _TRUTH.get(value.strip().lower(), value)
        with suppress(ValueError):
            weight = float(weight)
    if not isinstance(weight, int | float) or not 0 <= weight <= _HEAVIEST:  # nor NaN, which is not in any range
        raise Unusable(reason, f"{what} is {value!r}; it should be true, false or a number from 0 to {_HEAVIEST:,.0f}")
    return float(weight)


def _joins(messages: Sequence[Message], message: Message) -> bool:
    if not messages or messages[-1]["role"] != "assistant" or "tool_calls" not in message or message["content"]:
        return False
    return (messages[-1].keys() & message.keys()) <= {"role", "content", "tool_calls"}


def _called(content: str, index: int) -> list[Message]:
    """Return the calls that a message of the role 'function_call' holds as JSON."""
    calls = parse_json(content, f"the tool call of message {index + 1}")
    return [_tool_call(call, index) for call in (calls if isinstance(calls, list) else [calls])]


def _tool_call(call: object, index: int) -> Message:
    """OpenAI's shape, with the arguments as an object: chat templates write them out themselves."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Unusable("malformed tool call", f"a tool call of message {index + 1} has no name")
    arguments = function.get("arguments", function.get("parameters")) or {}
    arguments = parse_json(arguments, f"the arguments of the tool call of message {index + 1}")
    if not isinstance(arguments, Mapping):
        raise Unusable(
            "malformed tool call",
            f"the arguments of a tool call of message {index + 1} must be an object, not {json_kind(arguments)}",
        )
    shaped: Message = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    if isinstance(call, Mapping) and call.get("id"):
        shaped["id"] = call["id"]
    return shaped


def _read_tools(tools: object) -> list[Any]:
    if not tools:
        return []
    listed = parse_json(tools, "the column 'tools'")
    if listed is None:
        return []
    if not isinstance(listed, Sequence) or not all(isinstance(tool, Mapping) for tool in listed):
        raise Unusable("malformed tools", "the column 'tools' is not a list of objects")
    return [tool if "function" in tool else {"type": "function", "function": dict(tool)} for tool in listed]


def parse_json_list(value: object, what: str) -> Any:
    """Return the value itself, or the list that it is when it is one as JSON in a string."""
    return parse_json(value, what) if isinstance(value, str) and value.lstrip().startswith("[") else value


def parse_json(value: object, what: str) -> Any:
    """Return the value itself, or what it says when it is JSON in a string."""
    if not isinstance(value, str):
        return value
    too_deep = Unusable("malformed JSON", f"{what} is nested more than {DEPTH} levels deep")
    try:
        parsed = json.loads(value)
    except RecursionError:
        raise too_deep from None
    except ValueError:
        raise Unusable("malformed JSON", f"{what} is a string that is not JSON") from None
    if value.count("{") + value.count("[") > DEPTH and is_deeper(parsed, DEPTH):
        raise too_deep
    return parsed

"""Images, videos and sounds of a row's columns put where its messages say: at their tags, or before the question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from swift.config.media import NAMES
from swift.data.conversation import Conversation, Message, Unusable, media_part, medium_in, parts_of
from swift.data.images import TAGS
from swift.data.media import Medium


def placed(conversation: Conversation, columns: Mapping[str, Sequence[Medium]]) -> Conversation:
    """Return the conversation with the media of its row in it; raise `Unusable` where their number does not fit.

    Parts of messages that name nothing of their own take from the column of their kind, and so do tags in texts.
    Without any of these, all of a column come before the first question, as in TRL and ms-swift. `columns` has those
    that the row has, by kind: the tag of a kind without a column is text like any other.
    """
    if not columns and not conversation.has_parts:
        return conversation
    for kind in NAMES:
        if kind in columns or _holes(conversation.messages, kind):
            conversation = _placed(conversation, kind, columns.get(kind))
    if not any(each.frames for each in conversation.media):
        return conversation
    return replace(conversation, messages=tuple(map(_unrolled, conversation.messages)))


def _unrolled(message: Message) -> Message:
    """Return a message in which the images of a video replace it."""
    if not parts_of(message):
        return message
    parts: list[dict[str, Any]] = []
    for part in parts_of(message):
        held = medium_in(part)
        parts += [part] if held is None or not held.frames else [media_part("image", each) for each in held.frames]
    return {**message, "content": parts}


def _placed(conversation: Conversation, kind: str, column: Sequence[Medium] | None) -> Conversation:
    holes = _holes(conversation.messages, kind)
    name = NAMES[kind]
    if column is None:
        raise Unusable(f"no {name}s", f"the messages leave {holes} {name}s to a column '{kind}s', which is not there")
    own = [each for each in conversation.media if each.kind == kind]
    if own and not holes:
        if own != list(column):
            raise Unusable(f"{name}s twice", f"the messages name {name}s of their own, and so does the column")
        return conversation
    messages = list(conversation.messages)
    if not holes:
        messages = [_at_tags(message, kind) for message in messages]
        holes = _holes(messages, kind)
        if not holes and column:
            first = next((index for index, message in enumerate(messages) if message["role"] == "user"), 0)
            messages[first] = _before(messages[first], kind, len(column))
            holes = len(column)
    if holes != len(column):
        raise Unusable(
            f"{name}s do not match",
            f"{holes} tags ({TAGS[kind]}) in the messages, and {len(column)} {name}s in the row",
        )
    given = iter(column)
    return replace(conversation, messages=tuple(_filled(message, kind, given) for message in messages))


def _holes(messages: Sequence[Message], kind: str) -> int:
    return sum(part["type"] == kind and part[kind] is None for message in messages for part in parts_of(message))


def _at_tags(message: Message, kind: str) -> Message:
    """Return a message whose tags of one kind have become parts of it."""
    content, tag = message["content"], TAGS[kind]
    if isinstance(content, str):
        if tag not in content:
            return message
        content = [{"type": "text", "text": content}]
    parts: list[dict[str, Any]] = []
    for part in content:
        pieces = re.split(re.escape(tag), part["text"]) if part["type"] == "text" else None
        if pieces is None:
            parts.append(part)
            continue
        for number, text in enumerate(pieces):
            parts += [media_part(kind)] * (number > 0)
            parts += [{"type": "text", "text": text}] * bool(text)
    return {**message, "content": parts}


def _before(message: Message, kind: str, count: int) -> Message:
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": [*(media_part(kind) for _ in range(count)), *parts]}


def _filled(message: Message, kind: str, media: Iterator[Medium]) -> Message:
    if not parts_of(message):
        return message
    parts = [
        media_part(kind, next(media)) if part["type"] == kind and part[kind] is None else part
        for part in parts_of(message)
    ]
    return {**message, "content": parts}

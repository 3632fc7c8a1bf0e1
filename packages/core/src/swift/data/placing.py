"""Images, videos and sounds of a row's columns put where its messages say: at their tags, or before the question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from swift.config.media import NAMES
from swift.data.conversation import (
    Conversation,
    Message,
    Unusable,
    map_parts,
    media_part,
    medium_in,
    parts_of,
    text_part,
)
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
    return replace(conversation, messages=tuple(map_parts(message, _images_of) for message in conversation.messages))


def _images_of(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the images of a video that is given as a list of them; any other part as it is."""
    held = medium_in(part)
    return [part] if held is None or not held.frames else [media_part("image", each) for each in held.frames]


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
            f"{holes} tags (<{kind}>) in the messages, and {len(column)} {name}s in the row",
        )
    given = iter(column)

    def filled(part: dict[str, Any]) -> list[dict[str, Any]]:
        return [media_part(kind, next(given)) if _is_hole(part, kind) else part]

    return replace(conversation, messages=tuple(map_parts(message, filled) for message in messages))


def _holes(messages: Sequence[Message], kind: str) -> int:
    return sum(_is_hole(part, kind) for message in messages for part in parts_of(message))


def _at_tags(message: Message, kind: str) -> Message:
    """Return a message whose tags of one kind have become parts of it."""
    tag = f"<{kind}>"

    def cut(part: dict[str, Any]) -> list[dict[str, Any]]:
        if part["type"] != "text":
            return [part]
        first, *others = part["text"].split(tag)
        pieces = [text_part(first), *(piece for text in others for piece in (media_part(kind), text_part(text)))]
        return [piece for piece in pieces if piece["type"] != "text" or piece["text"]]

    if isinstance(message["content"], str):
        return {**message, "content": cut(text_part(message["content"]))} if tag in message["content"] else message
    return map_parts(message, cut)


def _before(message: Message, kind: str, count: int) -> Message:
    parts = parts_of(message) or [text_part(message["content"])]
    return {**message, "content": [*(media_part(kind) for _ in range(count)), *parts]}


def _is_hole(part: Mapping[str, Any], kind: str) -> bool:
    return part["type"] == kind and part[kind] is None

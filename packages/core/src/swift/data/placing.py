"""Pictures of a row's column put where its messages say: at their tags, or before the first question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from swift.data.conversation import IMAGE, Conversation, Message, Unusable, parts_of
from swift.data.pictures import TAG, Picture


def placed(conversation: Conversation, pictures: Sequence[Picture] | None) -> Conversation:
    """Return the conversation with the pictures of its row in it; raise `Unusable` where their number does not fit.

    Parts of messages that name no picture of their own take those of the column, and so do tags in texts. Without any
    of these, all pictures come before the first question, as in TRL and ms-swift. `pictures` is None where the row has
    no column of pictures: then a tag is text like any other.
    """
    if pictures is None and not conversation.has_parts:
        return conversation
    holes = sum(part[IMAGE] is None for part in _pictured(conversation))
    if pictures is None:
        if holes:
            raise Unusable(
                "no pictures", f"the messages leave {holes} pictures to a column 'images', which is not there"
            )
        return conversation
    if conversation.pictures and not holes:
        if conversation.pictures != list(pictures):
            raise Unusable("pictures twice", "the messages name pictures of their own, and so does the column")
        return conversation
    messages = list(conversation.messages)
    if not holes:
        messages = [_at_tags(message) for message in messages]
        holes = sum(part[IMAGE] is None for message in messages for part in _of(message))
        if not holes and pictures:
            first = next((index for index, message in enumerate(messages) if message["role"] == "user"), 0)
            messages[first] = _before(messages[first], len(pictures))
            holes = len(pictures)
    if holes != len(pictures):
        raise Unusable(
            "pictures do not match", f"{holes} places ({TAG}) in the messages, and {len(pictures)} pictures in the row"
        )
    given = iter(pictures)
    return replace(conversation, messages=tuple(_filled(message, given) for message in messages))


def _pictured(conversation: Conversation) -> list[dict[str, Any]]:
    return [part for message in conversation.messages for part in _of(message)]


def _of(message: Message) -> list[dict[str, Any]]:
    return [part for part in parts_of(message) if part["type"] == IMAGE]


def _at_tags(message: Message) -> Message:
    """Return a message whose tags have become parts of it."""
    content = message["content"]
    if not isinstance(content, str) or TAG not in content:
        return message
    parts: list[dict[str, Any]] = []
    for number, text in enumerate(content.split(TAG)):
        parts += [{"type": IMAGE, IMAGE: None}] * (number > 0)
        parts += [{"type": "text", "text": text}] * bool(text)
    return {**message, "content": parts}


def _before(message: Message, count: int) -> Message:
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": [*({"type": IMAGE, IMAGE: None} for _ in range(count)), *parts]}


def _filled(message: Message, pictures: Iterator[Picture]) -> Message:
    if not _of(message):
        return message
    parts = [
        {**part, IMAGE: next(pictures)} if part["type"] == IMAGE and part[IMAGE] is None else part
        for part in parts_of(message)
    ]
    return {**message, "content": parts}

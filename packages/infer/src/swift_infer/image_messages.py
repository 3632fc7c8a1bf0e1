"""Messages with images: typed, written to files, and sent to servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from swift.config.media import NAMES, ONE
from swift.data import medium_in, parts_of, placed
from swift.data.encodings import Conversation, Unusable
from swift.data.images import as_url, read_medium
from swift.data.media import Medium
from swift.errors import DataError
from swift_infer.response import Messages


def has_images(messages: Messages) -> bool:
    """Return whether any message holds an image."""
    return any(medium_in(part) is not None for message in messages for part in parts_of(message))


def question_with(text: str, images: Sequence[str | Path]) -> dict[str, Any]:
    """Return the user's message: images at the tags of its text, or before it."""
    return question_of(text, {"image": images})


def question_of(text: str, files: Mapping[str, Sequence[str | Path]]) -> dict[str, Any]:
    """Return the user's message: images, videos and audio, by kind, at the tags of its text, or before it."""
    message = {"role": "user", "content": text}
    try:
        held = {kind: [read_medium(str(each), None, kind) for each in named] for kind, named in files.items() if named}
        return dict(placed(Conversation((message,), (1.0,)), held).messages[0]) if held else message
    except Unusable as unusable:
        raise DataError(f"{unusable.reason}: {unusable.detail}.", hint="Name a file for each image.") from None


def written(messages: Messages) -> list[dict[str, Any]]:
    """Return messages for files: an image is its path, or a data URI if it has none."""
    return _with(messages, lambda each: {"type": each.kind, "path": each.path} if each.path else _sent(each))


def for_servers(messages: Messages) -> list[dict[str, Any]]:
    """Return messages for OpenAI's API, every image as a data URI; raise `DataError` if a file is missing."""
    try:
        return _with(messages, _sent)
    except Unusable as unusable:
        raise DataError(f"{unusable.reason}: {unusable.detail}.", hint="Name an image that can be read.") from None


def _with(messages: Messages, spell: Callable[[Medium], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with each image spelled as the function says."""
    return [
        {**message, "content": [part if (held := medium_in(part)) is None else spell(held) for part in parts]}
        if (parts := parts_of(message))
        else message
        for message in messages
    ]


def _sent(medium: Medium) -> dict[str, Any]:
    if medium.kind != "image":
        raise Unusable(f"{ONE[medium.kind]} for a server", f"swift sends images only, no {NAMES[medium.kind]}s")
    return {"type": "image_url", "image_url": {"url": as_url(medium)}}

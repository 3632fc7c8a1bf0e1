"""Encodings: how rows of data sets become samples. One file each; an objective names one, or brings its own."""

from __future__ import annotations

from swift.data.conversation import Conversation, Unusable, raw_text
from swift.data.conversation_tokens import ConversationEncoder
from swift.data.encodings.base import ALL_MEDIA, EncodedRow, Encoding, ReadRow
from swift.data.encodings.chat import ChatEncoding, TextEncoding
from swift.data.formats import RowReader, Sample
from swift.data.text import Steps
from swift.errors import ConfigError

__all__ = [
    "ALL_MEDIA",
    "BY_NAME",
    "ChatEncoding",
    "Conversation",
    "ConversationEncoder",
    "EncodedRow",
    "Encoding",
    "ReadRow",
    "RowReader",
    "Sample",
    "Steps",
    "TextEncoding",
    "Unusable",
    "encoding_of",
    "raw_text",
]

BY_NAME: dict[str, Encoding] = {each.name: each for each in (TextEncoding(), ChatEncoding())}
"""Core's own encodings, which an objective may name."""


def encoding_of(encoding: str | Encoding) -> Encoding:
    """Return the encoding that an objective names or brings."""
    if isinstance(encoding, Encoding):
        return encoding
    if encoding not in BY_NAME:
        raise ConfigError(f"There is no encoding {encoding!r}, only {', '.join(BY_NAME)}.")
    return BY_NAME[encoding]

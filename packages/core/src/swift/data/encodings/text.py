"""Texts, each one segment, of which every token is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.data.encodings.chat import ChatEncoding

if TYPE_CHECKING:
    from swift.data.conversation_tokens import LossOn


class TextEncoding(ChatEncoding):
    """Plain text: all of it is learned, and a text that is too long may become several samples."""

    name = "text"
    loss_on: LossOn = "all"
    can_split = True

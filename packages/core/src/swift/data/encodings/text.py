"""Texts, each one segment, of which every token is learned."""

from __future__ import annotations

from swift.data.conversation_tokens import LossOn
from swift.data.encodings.chat import ChatEncoding
from swift.data.formats import RowReader, Sample


class TextEncoding(ChatEncoding):
    """Plain text: all of it is learned, and a text that is too long may become several samples."""

    name = "text"
    loss_on: LossOn = "all"
    can_split = True

    def read(self, row: RowReader) -> Sample:
        """Return the text of the row, in which images may stand, or its conversation."""
        text = row.plain_text()
        if text is None:
            return super().read(row)
        return Sample(text, weight=row.weight() * text.weights[0], format="text")

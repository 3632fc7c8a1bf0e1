"""Conversations, each one segment, of which the assistant's messages are learned; and texts, of which all is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from swift.data.conversation import Unusable
from swift.data.conversation_tokens import ConversationEncoder, LossOn
from swift.data.encodings.base import ALL_MEDIA, EncodedRow, Encoding, ReadRow
from swift.data.formats import RowReader, Sample
from swift.data.samples import Encoded
from swift.data.text import Steps


class ChatEncoding(Encoding):
    """One sample of one segment; several where the template rewrites earlier turns."""

    name = "chat"
    loss_on: LossOn = "assistant"
    media = ALL_MEDIA

    def read(self, row: RowReader) -> Sample:
        """Return the conversation of the row, without those that KTO marks as rejected."""
        conversation = row.conversation()
        if len(conversation.messages) > 1:
            row.refuse_rejected()
        return Sample(conversation, weight=row.weight(), format=row.format())

    def encode(self, row: ReadRow, encoder: ConversationEncoder) -> Steps[EncodedRow]:
        """Return a sample for each text of the conversation that has something to learn."""
        segments = yield from encoder.segments(row.sample.conversation, row.location)
        fitting = [part for segment in segments for part in encoder.fit(segment)]
        if row.sample.weight != 1.0:
            fitting = [replace(part, weights=part.weights * np.float32(row.sample.weight)) for part in fitting]
        learned = [part for part in fitting if part.weights.any()]
        if not learned:
            raise Unusable("nothing to learn", "no token of the completions has a loss")
        samples = tuple(Encoded(0, (part,)) for part in learned)
        return EncodedRow(samples, turn_by_turn=len(segments) > 1)


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

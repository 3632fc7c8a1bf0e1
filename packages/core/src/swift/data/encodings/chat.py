"""Conversations, each one segment, of which the assistant's answers are learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.config.media import KINDS
from swift.data.conversation import Unusable
from swift.data.encodings.base import EncodedRow, Encoding, ReadRow
from swift.data.formats import RowReader, Sample
from swift.data.samples import Encoded
from swift.data.texts import Steps

if TYPE_CHECKING:
    from swift.data.conversation_tokens import ConversationEncoder, LossOn


class ChatEncoding(Encoding):
    """One sample of one segment; several where the template rewrites earlier turns."""

    name = "chat"
    loss_on: LossOn = "assistant"
    media = frozenset(KINDS)

    def read(self, row: RowReader) -> Sample:
        """Return the conversation of the row."""
        return Sample(row.conversation())

    def encode(self, row: ReadRow, encoder: ConversationEncoder) -> Steps[EncodedRow]:
        """Return a sample for each text of the conversation that has something to learn."""
        segments = yield from encoder.segments(row.sample.conversation, row.place)
        fitting = [part for segment in segments for part in encoder.fit(segment)]
        learned = [part for part in fitting if part.weights.any()]
        if not learned:
            raise Unusable("nothing to learn", "no token of the answers counts")
        samples = tuple(Encoded(0, (part,)) for part in learned)
        return EncodedRow(samples, turn_by_turn=len(segments) > 1)

    def cache_key(self) -> str:
        """Return the name: the data sets of earlier releases are found under it."""
        return self.name

"""Prompts: rows that end with a question, which the model in training answers."""

from __future__ import annotations

from dataclasses import replace

from swift.data.encodings import ConversationEncoder, EncodedRow, Encoding, ReadRow, RowReader, Sample, Steps
from swift.data.samples import Encoded


class PromptEncoding(Encoding):
    """One sample of one segment: the tokens up to where the assistant speaks, none of which is learned."""

    name = "prompt"
    segment_names = ("prompt",)
    keeps_columns = True
    columns = "messages; prompt, query, instruction or question; any others are for rewards"

    def read(self, row: RowReader) -> Sample:
        """Return the conversation up to its last question; an answer that follows it is left out."""
        return Sample(row.prompt())

    def encode(self, row: ReadRow, encoder: ConversationEncoder) -> Steps[EncodedRow]:
        """Return the prompt as tokens."""
        segment = yield from encoder.prompt(row.sample.conversation, row.location)
        return EncodedRow((Encoded(0, (replace(segment, weights=segment.weights * 0),)),))

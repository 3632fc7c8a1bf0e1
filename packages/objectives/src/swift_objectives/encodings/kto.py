"""KTO: completions that are each marked good or bad, next to a mismatched completion."""

from __future__ import annotations

from dataclasses import replace

from swift.data.conversation import Unusable
from swift.data.encodings import ALL_MEDIA, ConversationEncoder, EncodedRow, Encoding, ReadRow
from swift.data.formats import RowReader, Sample
from swift.data.text import Steps
from swift_objectives.encodings.preference import compared

_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class KtoEncoding(Encoding):
    """One sample of two segments: the prompt with its own completion, and with the completion of the next row."""

    name = "kto"
    segment_names = ("completion", "completion of another sample")
    values = ("label",)
    media = ALL_MEDIA
    needs_following = True

    def read(self, row: RowReader) -> Sample:
        """Return the conversation of the row, and whether its completion is a good one."""
        return Sample(row.conversation(), values={"label": _label(row)})

    def encode(self, row: ReadRow, encoder: ConversationEncoder) -> Steps[EncodedRow]:
        """Return the conversation and the mismatched one as one sample."""
        own, other = row.sample.conversation, (row.following or row.sample).conversation
        response = other.messages[other.last_round :]
        messages = (*own.messages[: own.last_round], *response)
        mixed = replace(own, messages=messages, weights=(1.0,) * len(messages))
        # The mismatched completion only estimates a divergence: it may be cut, whatever happens to long samples.
        mismatched = yield from encoder.beginning(mixed, row.location)
        completion = yield from encoder.segment(own, row.location)
        return compared((completion, mismatched), row.sample.values)


def _label(row: RowReader) -> float:
    if not row.has("label"):
        raise row.unknown("no boolean column 'label'")
    label = row.value("label")
    truth = _TRUTH.get(label.strip().lower()) if isinstance(label, str) else None
    if isinstance(label, bool | int | float) and label in (0, 1):
        truth = bool(label)
    if truth is None:
        raise Unusable("malformed label", f"the label is {label!r}; it should be true or false")
    return float(truth)

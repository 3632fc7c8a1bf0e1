"""An encoding as a plugin would bring it: a text with a whole number, and the text of the next row to compare with."""

from __future__ import annotations

from typing import Any

from swift.data.encodings import EncodedRow, Encoding, ReadRow, RowReader, Sample, Unusable, raw_text
from swift.data.samples import Encoded


class LabelledEncoding(Encoding):
    """One segment for the text of a row; its class and its difficulty are values."""

    name = "labelled"
    segment_names = ("document",)
    values = ("label", "difficulty")
    loss_on = "all"
    columns = "text and label"

    def __init__(self, classes: int = 3) -> None:
        self.classes = classes

    def read(self, row: RowReader) -> Sample:
        text, label = row.text("text"), row.number("label")
        if not 0 <= label < self.classes:
            raise Unusable("unknown class", f"the label is {label:g}, and there are {self.classes} classes")
        values = {"label": label, **({"difficulty": row.number("difficulty")} if row.has("difficulty") else {})}
        return Sample(raw_text(text), values=values)

    def encode(self, row: ReadRow, encoder: Any) -> Any:
        segment = yield from encoder.segment(row.sample.conversation, row.location)
        return EncodedRow((Encoded(0, (segment,), values=dict(row.sample.values)),))

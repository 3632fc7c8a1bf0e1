"""Texts that are compared by their vectors: a query with documents, or two texts with a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from swift.data.conversation import Unusable, parse_json, raw_text
from swift.data.encodings.base import EncodedRow, Encoding, ReadRow
from swift.data.formats import NEGATIVE, POSITIVE, RowReader, Sample
from swift.data.samples import Encoded, Segment
from swift.data.texts import Steps, Whole

if TYPE_CHECKING:
    from swift.data.conversation_tokens import ConversationEncoder

QUERIES = ("anchor", "query", "question", "sentence1", "sentence_A", "text1")
POSITIVES = (*POSITIVE, "answer", "response", "sentence2", "sentence_B", "text2", "document")
NEGATIVES = (*NEGATIVE, "rejected_response")
LABELS = ("label", "score")

Labels = Literal["none", "similarity", "binary"]
"""What the label of a row says: nothing (documents are positives or negatives), how similar two texts are, or
whether they belong together."""


class EmbeddingEncoding(Encoding):
    """One sample of a query, its positives and its negatives; with labels, one sample for each pair of texts.

    Every text is tokenised as the tokenizer does it when it is called, with the special tokens that it adds: so does
    sentence-transformers. Chat templates are not used.
    """

    name = "embedding"
    segment_names = ("query", "document")
    segments_vary = True
    values = ("positives", "label")
    columns = (
        "messages with positive_messages (and negative_messages); or texts in "
        f"{', '.join(QUERIES)}, with {', '.join(POSITIVES)}, and {', '.join(NEGATIVES)} or negative_1, ...; "
        f"each a text or a list of texts; and a number in {' or '.join(LABELS)}"
    )

    def __init__(
        self,
        labels: Labels = "none",
        *,
        query_prompt: str = "",
        document_prompt: str = "",
        most_negatives: int | None = None,
        needs_negatives: bool = False,
    ) -> None:
        self.labels = labels
        self.query_prompt = query_prompt
        self.document_prompt = document_prompt
        self.most_negatives = most_negatives
        self.needs_negatives = needs_negatives

    def read(self, row: RowReader) -> Sample:
        """Return the query, and its positives and negatives in this order."""
        queries = _texts(row, "query", ("messages",) if row.has("positive_messages") else QUERIES)
        positives = _texts(row, "positive", ("positive_messages",) if row.has("positive_messages") else POSITIVES)
        negatives = _texts(row, "negative", ("negative_messages",) if row.has("negative_messages") else NEGATIVES)
        if queries is None or positives is None:
            raise row.unknown("no query with a text that belongs to it")
        if len(queries) != 1:
            raise Unusable("not one query", f"{len(queries)} texts stand where the query belongs")
        negatives = negatives or []
        if not positives:
            raise Unusable("no positive", "no text belongs to the query")
        if both := set(positives) & set(negatives):
            raise Unusable("a positive is also a negative", f"the same text is given as both: {min(both)}")
        values = {"positives": float(len(positives)), **self._label(row, negatives)}
        documents = (*positives, *negatives[: self.most_negatives])
        return Sample(
            raw_text(self.query_prompt + queries[0]),
            others=tuple(raw_text(self.document_prompt + text) for text in documents),
            values=values,
        )

    def encode(self, row: ReadRow, encoder: ConversationEncoder) -> Steps[EncodedRow]:
        """Return the texts as one sample, or as one for each labelled pair."""
        sample = row.sample
        texts = [each.messages[0]["content"] for each in (sample.conversation, *sample.others)]
        found = yield [Whole(text) for text in texts]
        query, *documents = (_fitted(segment, encoder) for segment in found)
        if self.labels == "none":
            return EncodedRow((_compared((query, *documents), sample.values),))
        positives = sample.values["positives"]
        pairs = [
            _compared((query, document), {"positives": 1.0, "label": sample.values.get("label", float(at < positives))})
            for at, document in enumerate(documents)
        ]
        return EncodedRow(tuple(pairs))

    def _label(self, row: RowReader, negatives: list[str]) -> dict[str, float]:
        """Return the label of the row, if it has one and the loss reads it."""
        column = next((name for name in LABELS if row.has(name)), None)
        label = None if column is None else row.number(column)
        if self.labels == "none":
            if label not in (None, 1.0):
                raise Unusable("not a pair that belongs together", f"the {column} is {label:g}, and InfoNCE takes 1")
            if self.needs_negatives and not negatives:
                raise Unusable("no negatives", "without in-batch negatives there is nothing to tell the positive from")
            return {}
        if label is None:
            if self.labels == "similarity":
                raise row.unknown("no number that says how similar the texts are (label or score)")
            return {}
        if negatives:
            raise Unusable("a label and negatives", f"the {column} is {label:g}, and there are negatives too")
        if not (-1 <= label <= 1 if self.labels == "similarity" else label in (0, 1)):
            meant = "from -1 to 1" if self.labels == "similarity" else "1 or 0"
            raise Unusable("label out of range", f"the {column} is {label:g}; it should be {meant}")
        return {"label": label}


def _texts(row: RowReader, what: str, columns: tuple[str, ...]) -> list[str] | None:
    """Return all texts of a kind, of one column and of the numbered ones; None where there is no such column."""
    named = row.take(columns)
    numbered = [row.value(name) for name in row.numbered(what)]
    if named is None and not numbered:
        return None
    texts = [text for value in (named, *numbered) if value is not None for text in _listed(value, what)]
    if not all(text.strip() for text in texts):
        raise Unusable("empty text", f"a {what} has no text")
    return texts


def _listed(value: object, what: str) -> list[str]:
    """Return the texts that a value holds: one, a list of them, the messages of one, or a list of such."""
    if isinstance(value, str) and value.lstrip().startswith(("[{", "[[")):
        value = parse_json(value, f"the {what}")
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [_spoken([value], what)]
    if not isinstance(value, list | tuple):
        raise Unusable("not a text", f"a {what} is a {type(value).__name__}, not a text")
    if value and isinstance(value[0], Mapping):
        return [_spoken(value, what)]
    return [text for each in value for text in _listed(each, what)]


def _spoken(messages: Sequence[object], what: str) -> str:
    """Return the text of one message, after a system message if there is one, as ms-swift joins them."""
    spoken = [_role_and_text(message, what) for message in messages]
    system = [text for role, text in spoken if role == "system"]
    texts = [text for role, text in spoken if role != "system" and text]
    if len(texts) != 1 or len(system) > 1:
        raise Unusable("not one message", f"a {what} has {len(texts)} messages with text, not one")
    return " ".join((*system, *texts))


def _role_and_text(message: object, what: str) -> tuple[object, str]:
    fields = message if isinstance(message, Mapping) else {}
    text = fields.get("content", fields.get("value"))
    if not isinstance(text, str):
        raise Unusable("malformed message", f"a message of a {what} has no text in 'content'")
    return fields.get("role", fields.get("from")), text


def _fitted(segment: Segment, encoder: ConversationEncoder) -> Segment:
    """Return the tokens within data.max_length; where the end is left out, a special token that ends the text stays."""
    (fitted,) = encoder.fit(segment)
    special = encoder.tokenizer.all_special_ids
    if len(fitted) == len(segment) or encoder.section.truncation != "right" or segment.input_ids[-1] not in special:
        return fitted
    return replace(fitted, input_ids=np.append(fitted.input_ids[:-1], segment.input_ids[-1:]))


def _compared(segments: tuple[Segment, ...], values: Mapping[str, float]) -> Encoded:
    """Return a sample. One token must have weight, which the first of a text never has: without it, it is a dummy."""
    if not all(len(segment) for segment in segments):
        raise Unusable("empty text", "the tokenizer makes no tokens of a text")
    if not any(segment.weights.any() for segment in segments):
        raise Unusable("texts of one token", "at least one text of a row needs two tokens or more")
    return Encoded(0, segments, values=dict(values))

"""Texts that are compared by their vectors: a query with documents, or two strings with a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from swift.data.conversation import Conversation, Unusable, parse_json, prompt_only, raw_text, text_of, text_part
from swift.data.encodings import ALL_MEDIA, ConversationEncoder, EncodedRow, Encoding, ReadRow
from swift.data.formats import NEGATIVE, POSITIVE, RowReader, Sample
from swift.data.samples import Encoded, Segment
from swift.data.text import Raw, Rendered, Span, Steps, Text
from swift.untrusted import json_kind

QUERIES = ("anchor", "query", "question", "sentence1", "sentence_A", "text1")
POSITIVES = (*POSITIVE, "answer", "response", "sentence2", "sentence_B", "text2", "document")
NEGATIVES = (*NEGATIVE, "rejected_response")
LABELS = ("label", "score")

Labels = Literal["none", "similarity", "binary"]
"""What the label of a row says: nothing (documents are positives or negatives), how similar two strings are, or
whether they belong together."""


class EmbeddingEncoding(Encoding):
    """One sample of a query, its positives and its negatives; with labels, one sample for each pair of strings.

    A text is tokenised as the tokenizer does it when it is called, with the special tokens that it adds: so does
    sentence-transformers. One with images is what the chat template makes of a user who says it, up to where the
    answer begins: it alone says where images stand.
    """

    name = "embedding"
    segment_names = ("query", "document")
    segments_vary = True
    values = ("positives", "label")
    media = ALL_MEDIA
    columns = (
        "messages with positive_messages (and negative_messages); or strings in "
        f"{', '.join(QUERIES)}, with {', '.join(POSITIVES)}, and {', '.join(NEGATIVES)} or negative_1, ...; "
        f"each a text or a list of strings; and a number in {' or '.join(LABELS)}"
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
        queries = _sequences(row, "query", ("messages",) if row.has("positive_messages") else QUERIES)
        positives = _sequences(row, "positive", ("positive_messages",) if row.has("positive_messages") else POSITIVES)
        negatives = _sequences(row, "negative", ("negative_messages",) if row.has("negative_messages") else NEGATIVES)
        if queries is None or positives is None:
            raise row.unknown("no query with a text that belongs to it")
        if len(queries) != 1:
            raise Unusable("not one query", f"{len(queries)} strings stand where the query belongs")
        if not positives:
            raise Unusable("no positive", "no text belongs to the query")
        (query,), positives, negatives = with_media(row, queries, positives, negatives or [])
        if both := [each for each in positives if each in negatives]:
            first = min(text_of(each.messages[-1]) for each in both)
            raise Unusable("a positive is also a negative", f"the same text is given as both: {first}")
        values = {"positives": float(len(positives)), **self._label(row, negatives)}
        documents = (*positives, *negatives[: self.most_negatives])
        return Sample(
            prompted(self.query_prompt, query),
            others=tuple(prompted(self.document_prompt, each) for each in documents),
            values=values,
        )

    def encode(self, row: ReadRow, encoder: ConversationEncoder) -> Steps[EncodedRow]:
        """Return the strings as one sample, or as one for each labelled pair."""
        sample = row.sample
        found = yield [
            prompt_text_of(each, row.location, encoder) if each.media else Raw(text_of(each.messages[0]), end=False)
            for each in (sample.conversation, *sample.others)
        ]
        query, *documents = (fitted(segment, encoder) for segment in found)
        if self.labels == "none":
            return EncodedRow((_compared((query, *documents), sample.values),))
        positives = sample.values["positives"]
        pairs = [
            _compared((query, document), {"positives": 1.0, "label": sample.values.get("label", float(at < positives))})
            for at, document in enumerate(documents)
        ]
        return EncodedRow(tuple(pairs))

    def _label(self, row: RowReader, negatives: list[Conversation]) -> dict[str, float]:
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
                raise row.unknown("no number for the similarity (label or score)")
            return {}
        if negatives:
            raise Unusable("a label and negatives", f"the {column} is {label:g}, and there are negatives too")
        if not (-1 <= label <= 1 if self.labels == "similarity" else label in (0, 1)):
            meant = "from -1 to 1" if self.labels == "similarity" else "1 or 0"
            raise Unusable("label out of range", f"the {column} is {label:g}; it should be {meant}")
        return {"label": label}


def _sequences(row: RowReader, what: str, columns: tuple[str, ...]) -> list[Conversation] | None:
    """Return all strings of a kind, of one column and of the numbered ones; None where there is no such column."""
    named = row.take(columns)
    numbered = [row.value(name) for name in row.numbered(what)]
    if named is None and not numbered:
        return None
    return [text for value in (named, *numbered) if value is not None for text in _listed(value, what, row)]


def _listed(value: object, what: str, row: RowReader) -> list[Conversation]:
    """Return the strings that a value holds: one, a list of them, the messages of one, or a list of such."""
    if isinstance(value, str) and value.lstrip().startswith(("[{", "[[")):
        value = parse_json(value, f"the {what}")
    if isinstance(value, str):
        return [prompt_only(value)]
    if isinstance(value, Mapping):
        return [_spoken([value], what, row)]
    if not isinstance(value, list | tuple):
        raise Unusable("not a string", f"a {what} is {json_kind(value)}, not a string")
    if value and isinstance(value[0], Mapping):
        return [_spoken(value, what, row)]
    return [text for each in value for text in _listed(each, what, row)]


def _spoken(messages: Sequence[object], what: str, row: RowReader) -> Conversation:
    """Return what one message says, after a system message if there is one."""
    spoken = [_role_and_content(message, what, row) for message in messages]
    system = [content for role, content in spoken if role == "system"]
    contents = [content for role, content in spoken if role != "system" and content]
    if len(contents) != 1 or len(system) > 1:
        raise Unusable("not one message", f"a {what} has {len(contents)} messages with text, not one")
    if any(not isinstance(each, str) for each in system):
        raise Unusable("malformed message", f"the system message of a {what} is more than a text")
    return prompt_only(contents[0], next(map(str, system), None))


def _role_and_content(message: object, what: str, row: RowReader) -> tuple[object, str | list[dict[str, Any]]]:
    fields = message if isinstance(message, Mapping) else {}
    content = fields.get("content", fields.get("value"))
    if not isinstance(content, str | list | tuple):
        raise Unusable("malformed message", f"a message of a {what} has no text in 'content'")
    return fields.get("role", fields.get("from")), row.content(content)


def with_media(row: RowReader, *sides: list[Conversation]) -> tuple[list[Conversation], ...]:
    """Return the query, its positives and its negatives with the row's images, videos and sounds in them.

    Positives have columns of their own (`positive_images`), and so have negatives, with a list for each text. Those
    without take from the columns of the query, one text after the other.
    """
    query, positives, negatives = sides
    own = [row.media_of_sequences("positive", len(positives)), row.media_of_sequences("negative", len(negatives))]
    shared = [*query, *(each for side, media in zip(sides[1:], own, strict=True) if media is None for each in side)]
    placed = iter(row.with_media_in_turn(shared))
    made = [[next(placed) for _ in query]]
    for side, media in zip(sides[1:], own, strict=True):
        made.append(list(media(side)) if media is not None else [next(placed) for _ in side])
    for what, side in zip(("query", "positive", "negative"), made, strict=True):
        if any(not each.media and not text_of(each.messages[-1]).strip() for each in side):
            raise Unusable("empty text", f"a {what} has no text")
    return tuple(made)


def prompted(prompt: str, text: Conversation) -> Conversation:
    """Return a text after the prompt: by itself, after its system message as ms-swift joins them, or unchanged.

    Only what holds images stays a conversation.
    """
    *before, message = text.messages
    if not text.media:
        return raw_text(prompt + " ".join(text_of(each) for each in text.messages))
    content = [text_part(prompt)] * bool(prompt) + message["content"]
    return replace(text, messages=(*before, {**message, "content": content}))


def prompt_text_of(text: Conversation, location: str, encoder: ConversationEncoder) -> Text:
    """Return the prompt with a text as the user message; all of it counts."""
    prompt = encoder.prompt_text(text, location)
    return replace(prompt, spans=(Span(0, len(prompt.text), 1.0),)) if isinstance(prompt, Rendered) else prompt


def fitted(segment: Segment, encoder: ConversationEncoder) -> Segment:
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
        raise Unusable("sequences of one token", "at least one text of a row needs two tokens or more")
    return Encoded(0, segments, values=dict(values))

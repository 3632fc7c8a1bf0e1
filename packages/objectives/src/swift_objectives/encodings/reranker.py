"""Queries with documents: each document is a segment with its query, relevant documents first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from swift.data.conversation import (
    Conversation,
    Message,
    Unusable,
    parse_json,
    parts_of,
    prompt_only,
    raw_text,
    text_of,
    text_part,
)
from swift.data.encodings import ALL_MEDIA, EncodedRow, Encoding, ReadRow
from swift.data.formats import MESSAGES, NEGATIVE, POSITIVE, RowReader, Sample
from swift.data.samples import TOKEN_TYPES, Encoded, Segment
from swift.data.text import Pair, Raw, Rendered, Span, Steps, Text
from swift.errors import ModelError
from swift.untrusted import json_kind
from swift_objectives.encodings.embedding import fitted, prompt_text_of, with_media

if TYPE_CHECKING:
    from swift.data import ChatTemplate
    from swift.data.encodings import ConversationEncoder

QUERY = ("query", "question", "anchor")
INSTRUCTION = ("instruction", "prompt")
DOCUMENT = ("document", "doc", "passage", "response")
DOCUMENTS = ("documents", "docs", "passages")
DOCUMENT_COLUMNS = (*DOCUMENT, *DOCUMENTS)
LABELS = ("label", "labels", "score")

JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "{yes}" or "{no}".'
)
"""What Qwen3-Reranker's system message says."""
_PROBE = "0123456789"
_TEXT = "<Query>: 31415926535"


@dataclass(frozen=True)
class Documents:
    """Which documents of a row make a sample."""

    listwise: bool
    """Whether each document that answers the query makes a sample of its own, with those that don't."""
    instruction: str | None = None
    max_positives: int | None = None
    max_negatives: int | None = None

    def samples(self, segments: Sequence[Segment], positives: int) -> tuple[Encoded, ...]:
        """Return the samples that a row becomes."""
        if not self.listwise:
            return (_sample(segments, positives),)
        negatives = segments[positives:]
        return tuple(_sample((right, *negatives), 1) for right in segments[:positives])


def _sample(segments: Sequence[Segment], positives: int) -> Encoded:
    return Encoded(0, tuple(segments), values={"positives": float(positives), "documents": float(len(segments))})


def pair_text(query: str, document: str, instruction: str | None) -> str:
    """Return what a reranker reads, in the words of Qwen3-Reranker; without an instruction, no line for it."""
    before, between = _instruction_parts(instruction)
    return f"{before}{query}{between}{document}"


def pair_of(query: Conversation, document: Conversation, instruction: str | None) -> Conversation:
    """Return the text of `pair_text`; where query or document hold images, what somebody says who shows them."""
    first, shown = query.messages[-1], document.messages[-1]
    if not query.media and not document.media:
        return raw_text(pair_text(text_of(first), text_of(shown), instruction))
    before, between = _instruction_parts(instruction)
    parts = [text_part(before), *_parts(first), text_part(between), *_parts(shown)]
    joined: list[dict[str, Any]] = []
    for part in parts:
        if part["type"] == "text" and joined and joined[-1]["type"] == "text":
            part = text_part(joined.pop()["text"] + part["text"])
        joined.append(part)
    return prompt_only(joined)


def _instruction_parts(instruction: str | None) -> tuple[str, str]:
    """Return what stands before the query, and what between it and the document."""
    return f"<Instruct>: {instruction}\n<Query>: " if instruction else "<Query>: ", "\n<Document>: "


def _parts(message: Message) -> list[dict[str, Any]]:
    return parts_of(message) or [text_part(message["content"])]


class RerankerEncoding(Encoding):
    """One segment per document: the text of `pair_text`, and the token that ends a text.

    With images in query or document it is what the chat template makes of somebody who says and shows that, up to
    where the answer begins.
    """

    name = "reranker"
    version = 2
    media = ALL_MEDIA
    segment_names = ("document",)
    segments_vary = True
    values = ("positives", "documents")
    columns = (
        "query, positive, negative (sequences, or lists of them); query, document, label (0 or 1); query, documents, "
        "labels; messages, positive_messages, negative_messages"
    )

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    def read(self, row: RowReader) -> Sample:
        """Return the query, and the documents that are learned from."""
        query, instruction = _query(row)
        (query,), positives, negatives = with_media(row, [query], *_documents(row))
        _check(query, positives, negatives, self._documents.listwise)
        positives = positives[: self._documents.max_positives]
        negatives = negatives[: self._documents.max_negatives]
        instruction = instruction or self._documents.instruction
        return Sample(
            query,
            others=tuple(self.joined(query, document, instruction) for document in (*positives, *negatives)),
            values={"positives": float(len(positives))},
        )

    def joined(self, query: Conversation, document: Conversation, instruction: str | None) -> Conversation:
        """Return a query with a document, as `sequences` takes them."""
        return pair_of(query, document, instruction)

    def encode(self, row: ReadRow, encoder: ConversationEncoder) -> Steps[EncodedRow]:
        """Return a sample of all documents, or one for each that answers the query."""
        segments = yield self.sequences(row.sample.others, row.location, encoder)
        segments = [self.scored(self.fitted(segment, encoder)) for segment in segments]
        return EncodedRow(self._documents.samples(segments, int(row.sample.values["positives"])))

    def sequences(self, pairs: Sequence[Conversation], location: str, encoder: ConversationEncoder) -> Sequence[Text]:
        """Return what is tokenised of queries with their documents."""
        return [
            prompt_text_of(pair, location, encoder) if pair.media else Raw(text_of(pair.messages[-1])) for pair in pairs
        ]

    def fitted(self, segment: Segment, encoder: ConversationEncoder) -> Segment:
        """Return the tokens within data.max_length."""
        return encoder.fit(segment)[0]

    def scored(self, segment: Segment) -> Segment:
        """Return the segment with weight where it is scored; raise `Unusable` where there is none."""
        return segment

    def cache_key(self) -> str:
        """Return what decides what rows become."""
        return f"{self.name} {self.version} {asdict(self._documents)}"


class PairEncoding(RerankerEncoding):
    """One segment per document: query and document, joined by the tokenizer of an encoder, with their token types."""

    name = "pairs"
    version = 1
    media: frozenset[str] = frozenset()
    token_values = (TOKEN_TYPES,)

    def joined(self, query: Conversation, document: Conversation, instruction: str | None) -> Conversation:
        """Return a query with a document as two messages."""
        if instruction is not None:
            raise Unusable("an instruction", "an encoder reads the query and the document alone")
        return Conversation((query.messages[-1], document.messages[-1]), (1.0, 1.0))

    def sequences(self, pairs: Sequence[Conversation], location: str, encoder: ConversationEncoder) -> Sequence[Text]:
        """Return queries and documents for the tokenizer to join."""
        return [Pair(*(text_of(message) for message in pair.messages)) for pair in pairs]

    def fitted(self, segment: Segment, encoder: ConversationEncoder) -> Segment:
        """Return the tokens within data.max_length; where the end is left out, the token that ends a pair stays."""
        return fitted(segment, encoder)


class GenerativeRerankerEncoding(RerankerEncoding):
    """One segment per document: the chat template's text up to the answer, of which only the last token counts.

    Its target is the token that says yes; what the model is asked for is how much more likely that is than no.
    """

    name = "generative_reranker"

    def __init__(self, documents: Documents, positive: str, negative: str) -> None:
        super().__init__(documents)
        self._positive, self._negative = positive, negative

    def sequences(self, pairs: Sequence[Conversation], location: str, encoder: ConversationEncoder) -> Sequence[Text]:
        """Return the conversations in which a model is asked about these, each up to the answer."""
        if encoder.template is None:
            raise ModelError(
                f"{location}: a generative reranker needs a tokenizer with a chat template.",
                hint="Give one with --model.chat_template FILE, or type --task_type reranker.",
            )
        judge = encoder.section.system or JUDGE.format(yes=self._positive, no=self._negative)
        made = []
        for pair in map(encoder.with_images, pairs):
            until = _until_completion(encoder.template, judge, pair.messages[-1]["content"], location)
            prompt = until + self._positive
            made.append(encoder.with_media(Rendered(prompt, (Span(len(until), len(prompt), 1.0),)), pair))
        return made

    def around(self, template: ChatTemplate, system: str | None) -> tuple[str, str]:
        """Return what stands before the text of `pair_text`, and what between it and the answer."""
        judge = system or JUDGE.format(yes=self._positive, no=self._negative)
        until = _until_completion(template, judge, _TEXT, "A query with a document")
        before, _, after = until.rpartition(_TEXT)
        return before, after

    def scored(self, segment: Segment) -> Segment:
        """Return the segment if it ends with the answer, and with nothing else of it."""
        if not segment.weights[-1]:
            raise Unusable("too long", "the end was cut off; data.truncation left cuts at the start")
        if np.count_nonzero(segment.weights) > 1:
            raise ModelError(
                f"{self._positive!r} is more than one token after this chat template.",
                hint="Pass single tokens: --objective.positive_token TEXT --objective.negative_token TEXT",
            )
        return segment

    def cache_key(self) -> str:
        """Return what decides what rows become."""
        return f"{super().cache_key()} {self._positive!r} {self._negative!r}"


def _until_completion(template: ChatTemplate, judge: str, text: str | list[dict[str, Any]], location: str) -> str:
    """Return the conversation in which a model is asked about a text, up to where its answer begins."""
    roles = {"system": judge, "user": text, "assistant": _PROBE}
    messages = tuple({"role": role, "content": content} for role, content in roles.items())
    whole = template.render(Conversation(messages, (1.0,) * len(messages)), (), location)[0].text
    return whole[: whole.rindex(_PROBE)]


def _query(row: RowReader) -> tuple[Conversation, str | None]:
    """Return the query, and what it asks for where the row says so."""
    if row.has(*MESSAGES):
        messages = parse_json(row.take(MESSAGES), "messages")
        contents = {str(each.get("role")): each.get("content") for each in _dicts(messages)}
        if len(contents) != len(messages) or not contents.keys() <= {"system", "user"}:
            raise Unusable("malformed query", "the messages are not a question, perhaps after a system message")
        return _content(row, contents.get("user"), "query"), contents.get("system")
    instruction = row.take(INSTRUCTION) if row.has(*QUERY) else None
    query = row.take(QUERY)
    if query is None:
        raise row.unknown("no query")
    if instruction is not None:
        instruction = text_of(_text(instruction, "instruction").messages[0])
    return _text(query, "query"), instruction


def _documents(row: RowReader) -> tuple[list[Conversation], list[Conversation]]:
    """Return the documents that are relevant to the query, and those that are not."""
    if row.has("positive_messages", "negative_messages"):
        sides = [row.value(name) if row.has(name) else () for name in ("positive_messages", "negative_messages")]
        return _sequences_of(row, sides[0]), _sequences_of(row, sides[1])
    if row.has(*DOCUMENT, *DOCUMENTS):
        return _labelled(row)
    if not row.has(*POSITIVE, *NEGATIVE):
        raise row.unknown("no documents")
    more = [text for name in row.numbered("negative") for text in _sequences(row.value(name))]
    return _sequences(row.take(POSITIVE)), [*_sequences(row.take(NEGATIVE)), *more]


def _labelled(row: RowReader) -> tuple[list[Conversation], list[Conversation]]:
    """Return the documents by the labels next to them."""
    sequences = _sequences(row.take(DOCUMENTS if row.has(*DOCUMENTS) else DOCUMENT))
    labels = row.take(LABELS)
    if labels is None:
        raise row.unknown("documents, but no labels of their relevance (label or labels)")
    labels = parse_json(labels, "labels") if isinstance(labels, str) else labels
    labels = [_label(each) for each in (labels if isinstance(labels, list | tuple) else [labels])]
    if len(labels) != len(sequences):
        raise Unusable("malformed label", f"{len(sequences)} documents, and {len(labels)} labels")
    sides: tuple[list[Conversation], list[Conversation]] = ([], [])
    for text, label in zip(sequences, labels, strict=True):
        sides[0 if label else 1].append(text)
    return sides


def _label(label: object) -> bool:
    if label in (0, 1):
        return bool(label)
    raise Unusable("malformed label", f"the label of a document is {label!r}; it should be 1 or 0")


def _sequences_of(row: RowReader, conversations: object) -> list[Conversation]:
    """Return what the last message of each conversation says."""
    conversations = parse_json(conversations, "messages")
    if not isinstance(conversations, list | tuple):
        raise Unusable("malformed document", "the documents are not a list of lists of messages")
    sequences = []
    for each in conversations:
        messages = _dicts(each if isinstance(each, list | tuple) else [each])
        sequences.append(_content(row, messages[-1].get("content") if messages else None, "document"))
    return sequences


def _dicts(messages: object) -> list[Mapping[str, Any]]:
    if not isinstance(messages, list | tuple) or not all(isinstance(each, Mapping) for each in messages):
        raise Unusable("malformed messages", "this is not a list of messages with role and content")
    return list(messages)


def _content(row: RowReader, content: object, what: str) -> Conversation:
    """Return what a message says: a text, or parts of which some are images."""
    if not isinstance(content, list | tuple):
        return _text(content, what)
    read = row.content(content)
    return _text(read, what) if isinstance(read, str) else prompt_only(read)


def _sequences(written: object) -> list[Conversation]:
    """Return the sequences of a column that holds one or several."""
    if written is None:
        return []
    return [_text(each, "document") for each in (written if isinstance(written, list | tuple) else [written])]


def _text(text: object, what: str) -> Conversation:
    if not isinstance(text, str):
        raise Unusable("not a string", f"the {what} is {json_kind(text)}, not a string")
    if not text.strip():
        raise Unusable(f"empty {what}", f"the {what} has no text")
    return prompt_only(text)


def _check(
    query: Conversation, positives: Sequence[Conversation], negatives: Sequence[Conversation], listwise: bool
) -> None:
    """Raise `Unusable` where there is nothing to rank."""
    if not positives and not negatives:
        raise Unusable("no documents", f"the query {text_of(query.messages[-1])!r} has none")
    if both := [text_of(each.messages[-1]) for each in positives if each in negatives]:
        raise Unusable("a document is both right and wrong", repr(min(both)))
    if listwise and not positives:
        raise Unusable("no right document", "the listwise loss needs a relevant document")
    if listwise and not negatives:
        raise Unusable("no wrong document", "the listwise loss needs an irrelevant document")

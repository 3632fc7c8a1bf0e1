"""Rows of embeddings: which formats are read, what becomes of a row, and what it is counted by when it is unusable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from encode_row import encode_row, encoder_of

from swift.config.sections import DataSection
from swift.data.pipeline import PreparedData, prepare_data
from swift.errors import DataError
from swift_objectives.encodings.embedding import EmbeddingEncoding
from swift_testing.tokenizer import byte_tokenizer

TOKENIZER = byte_tokenizer()
QUERY, GOOD, BAD = "a question", "the answer", "nonsense"


def prepared(tmp_path: Path, rows: Any, encoding: EmbeddingEncoding | None = None, **section: Any) -> PreparedData:
    settings = DataSection(cache=tmp_path / "cache", workers=1, **section)
    given = {"rows": rows} if isinstance(rows, list) else {}
    encoding = encoding or EmbeddingEncoding()
    return prepare_data(settings, TOKENIZER, encoding=encoding, seed=1, say=lambda _: None, **given)


def texts(data: PreparedData, index: int = 0) -> list[str]:
    return [TOKENIZER.decode(segment.input_ids) for segment in data.train.samples[index].segments]


def said(*contents: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content} for content in contents]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": said(QUERY), "positive_messages": [said(GOOD)], "negative_messages": [said(BAD), said("no")]},
        {"messages": said(QUERY), "positive_messages": said(GOOD), "negative_messages": [said(BAD), said("no")]},
        {
            "messages": [*said(QUERY), {"role": "assistant", "content": ""}],
            "positive_messages": f'[[{{"role": "user", "content": "{GOOD}"}}]]',
            "negative_messages": [said(BAD), said("no")],
        },
        {"anchor": QUERY, "positive": GOOD, "negative_2": "no", "negative_1": BAD},
        {"anchor": QUERY, "positive": GOOD, "negative": BAD, "negative_1": "no"},
        {"query": QUERY, "pos": [GOOD], "neg": [BAD, "no"]},
        {"query": QUERY, "response": GOOD, "rejected_response": [BAD, "no"], "label": 1},
        {"sentence1": QUERY, "sentence2": GOOD, "negatives": [BAD, "no"]},
    ],
    ids=lambda row: " ".join(row),
)
def test_query_positives_negatives_are_read_from_every_format(tmp_path: Path, row: dict[str, Any]) -> None:
    """A query its positives and its negatives are read from every format."""
    data = prepared(tmp_path, [row])
    assert texts(data) == [QUERY, GOOD, BAD, "no"]
    assert data.train.samples[0].values["positives"] == 1


def test_rows_may_have_different_numbers_of_documents(tmp_path: Path) -> None:
    rows = [{"query": QUERY, "pos": [GOOD, "too"], "neg": []}, {"query": "q2", "pos": [GOOD], "neg": [BAD, "b", "c"]}]
    data = prepared(tmp_path, rows, EmbeddingEncoding(most_negatives=2))
    assert [texts(data, index) for index in range(2)] == [[QUERY, GOOD, "too"], ["q2", GOOD, BAD, "b"]]
    assert [data.train.samples[index].values["positives"] for index in range(2)] == [2, 1]


def test_embedding_tokens_match_tokenizer_after_prompts() -> None:
    """Texts have the tokens that the tokenizer itself gives them after the prompts; one that is cut keeps its end."""
    from tokenizers.processors import TemplateProcessing

    framing = byte_tokenizer()
    framing.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {framing.eos_token}", special_tokens=[(framing.eos_token, framing.eos_token_id)]
    )
    encoding = EmbeddingEncoding(query_prompt="Query: ", document_prompt="Text: ")
    row = {"anchor": QUERY, "positive": GOOD}
    for tokenizer in (TOKENIZER, framing):
        (made,) = encode_row(encoder_of(tokenizer, encoding), row)
        expected = [tokenizer(text)["input_ids"] for text in (f"Query: {QUERY}", f"Text: {GOOD}")]
        assert [segment.input_ids.tolist() for segment in made.segments] == expected
        assert all(segment.weights[1:].all() for segment in made.segments)
    assert expected[0][-1] == framing.eos_token_id
    (made,) = encode_row(encoder_of(framing, encoding, max_length=12, truncation="right"), row)
    expected = [
        framing(text, truncation=True, max_length=12)["input_ids"] for text in (f"Query: {QUERY}", f"Text: {GOOD}")
    ]
    assert [segment.input_ids.tolist() for segment in made.segments] == expected
    assert list(map(len, expected)) == [12, 12]


def test_system_message_is_prepended_as_instruction(tmp_path: Path) -> None:
    """A system message stands before the text as an instruction."""
    row = {"messages": [{"role": "system", "content": "Find it:"}, *said(QUERY)], "positive_messages": [said(GOOD)]}
    assert texts(prepared(tmp_path, [row])) == [f"Find it: {QUERY}", GOOD]


def test_pairs_with_scores_and_labels_are_samples_of_two_texts(tmp_path: Path) -> None:
    scored = prepared(
        tmp_path, [{"sentence1": "a b", "sentence2": "c d", "score": 0.25}], EmbeddingEncoding("similarity")
    )
    assert scored.train.samples[0].values == {"positives": 1, "label": 0.25}
    rows = [{"text1": "a b", "text2": "c d", "label": 0}, {"query": QUERY, "pos": [GOOD], "neg": [BAD]}]
    data = prepared(tmp_path, rows, EmbeddingEncoding("binary"))
    assert [data.train.samples[index].values["label"] for index in range(3)] == [0, 1, 0]
    assert [texts(data, index) for index in range(3)] == [["a b", "c d"], [QUERY, GOOD], [QUERY, BAD]]


USABLE = {"query": QUERY, "pos": [GOOD], "neg": [BAD]}


@pytest.mark.parametrize(
    ("encoding", "row", "reason"),
    [
        (EmbeddingEncoding(), {"query": " ", "pos": [GOOD]}, "empty text"),
        (EmbeddingEncoding(), {"query": QUERY, "pos": [""]}, "empty text"),
        (EmbeddingEncoding(), {"query": QUERY, "pos": []}, "no positive"),
        (EmbeddingEncoding(), {"query": QUERY, "pos": [3]}, "not a string"),
        (EmbeddingEncoding(), {"query": [QUERY, "b"], "pos": [GOOD]}, "not one query"),
        (EmbeddingEncoding(), {"query": QUERY, "pos": [GOOD], "neg": [GOOD]}, "a positive is also a negative"),
        (EmbeddingEncoding(), {"query": QUERY, "pos": [GOOD], "label": 0}, "not a pair that belongs together"),
        (EmbeddingEncoding(), {"query": QUERY, "pos": [GOOD], "label": float("nan")}, "malformed label"),
        (EmbeddingEncoding(), {"query": QUERY, "pos": [GOOD], "neg": [said("a", "b")]}, "not one message"),
        (EmbeddingEncoding(), {"query": "a", "pos": ["b"]}, "sequences of one token"),
        (EmbeddingEncoding(needs_negatives=True), {"query": QUERY, "pos": [GOOD], "neg": []}, "no negatives"),
        (EmbeddingEncoding("binary"), {"query": QUERY, "pos": [GOOD], "label": 0.5}, "label out of range"),
        (EmbeddingEncoding("binary"), {**USABLE, "label": 1}, "a label and negatives"),
        (EmbeddingEncoding("similarity"), {"sentence1": "a b", "sentence2": "c d", "score": 4.2}, "label out of range"),
    ],
)
def test_unusable_rows_are_counted_by_reason(
    tmp_path: Path, encoding: EmbeddingEncoding, row: dict[str, Any], reason: str
) -> None:
    usable = USABLE if encoding.labels != "similarity" else {**row, "score": 0.5}
    data = prepared(tmp_path, [usable, row], encoding)
    assert {name: each.count for name, each in data.train.report.rejected.items()} == {reason: 1}


@pytest.mark.parametrize(
    ("encoding", "row"),
    [
        (EmbeddingEncoding(), {"query": QUERY, "neg": [BAD]}),
        (EmbeddingEncoding(), {"text": QUERY}),
        (EmbeddingEncoding("similarity"), {"sentence1": QUERY, "sentence2": GOOD}),
    ],
)
def test_missing_embedding_columns_list_expected_ones(
    tmp_path: Path, encoding: EmbeddingEncoding, row: dict[str, Any]
) -> None:
    """A data set without the columns is refused with those that are read."""
    with pytest.raises(DataError) as refused:
        prepared(tmp_path, [row], encoding)
    assert "anchor, query" in str(refused.value.hint)

"""Rows of embeddings: which formats are read, what becomes of a row, and what it is counted by when it is unusable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swift.config.sections import DataSection
from swift.data.encode import SampleEncoder
from swift.data.encodings.embedding import EmbeddingEncoding
from swift.data.pipeline import PreparedData, prepare_data
from swift.demo.tokenizer import byte_tokenizer
from swift.errors import DataError

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
    data = prepared(tmp_path, rows)
    assert [len(sample.segments) for sample in (data.train.samples[0], data.train.samples[1])] == [3, 5]
    assert [data.train.samples[index].values["positives"] for index in range(2)] == [2, 1]


def test_csv_and_jsonl_files_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f"anchor,positive,negative\n{QUERY},{GOOD},{BAD}\n")
    (tmp_path / "rows.jsonl").write_text(f'{{"anchor": "{QUERY}", "positive": "{GOOD}", "negative": "{BAD}"}}\n')
    found = [texts(prepared(tmp_path, None, train=[str(tmp_path / name)])) for name in ("rows.csv", "rows.jsonl")]
    assert found == [[QUERY, GOOD, BAD]] * 2


def test_embedding_tokens_match_tokenizer_after_prompts(tmp_path: Path) -> None:
    """Texts have the tokens that the tokenizer itself gives them after the prompts."""
    from tokenizers.processors import TemplateProcessing

    framing = byte_tokenizer()
    end = framing.eos_token_id
    framing.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {framing.eos_token}", special_tokens=[(framing.eos_token, end)]
    )
    encoding = EmbeddingEncoding(query_prompt="Query: ", document_prompt="Text: ")
    for tokenizer in (TOKENIZER, framing):
        sample = encoding.understand({"anchor": QUERY, "positive": GOOD}, "row 1")
        (made,) = SampleEncoder(tokenizer, DataSection(), encoding).encode(sample, "row 1").samples
        expected = [tokenizer(text)["input_ids"] for text in (f"Query: {QUERY}", f"Text: {GOOD}")]
        assert [segment.input_ids.tolist() for segment in made.segments] == expected
        assert all(segment.weights[1:].all() for segment in made.segments)
    assert expected[0][-1] == end


def test_a_text_that_is_too_long_keeps_the_token_that_ends_it(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {tokenizer.eos_token}", special_tokens=[(tokenizer.eos_token, tokenizer.eos_token_id)]
    )
    encoding = EmbeddingEncoding()
    sample = encoding.understand({"anchor": QUERY, "positive": "x" * 50}, "row 1")
    section = DataSection(max_length=12, truncation="right")
    (made,) = SampleEncoder(tokenizer, section, encoding).encode(sample, "row 1").samples
    expected = tokenizer("x" * 50, truncation=True, max_length=12)["input_ids"]
    assert made.segments[1].input_ids.tolist() == expected
    assert len(expected) == 12


def test_system_message_is_prepended_as_instruction(tmp_path: Path) -> None:
    """A system message stands before the text as an instruction."""
    row = {"messages": [{"role": "system", "content": "Find it:"}, *said(QUERY)], "positive_messages": [said(GOOD)]}
    assert texts(prepared(tmp_path, [row])) == [f"Find it: {QUERY}", GOOD]


def test_negatives_beyond_their_number_are_left_out(tmp_path: Path) -> None:
    row = {"query": QUERY, "pos": [GOOD], "neg": ["a", "b", "c"]}
    assert texts(prepared(tmp_path, [row], EmbeddingEncoding(most_negatives=2))) == [QUERY, GOOD, "a", "b"]


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
    ],
)
def test_unusable_rows_are_counted_by_reason(
    tmp_path: Path, encoding: EmbeddingEncoding, row: dict[str, Any], reason: str
) -> None:
    data = prepared(tmp_path, [USABLE, row], encoding)
    assert {name: each.count for name, each in data.train.report.rejected.items()} == {reason: 1}


def test_a_similarity_outside_of_its_range_is_counted(tmp_path: Path) -> None:
    rows = [{"sentence1": "a b", "sentence2": "c d", "score": score} for score in (0.5, 4.2)]
    data = prepared(tmp_path, rows, EmbeddingEncoding("similarity"))
    assert list(data.train.report.rejected) == ["label out of range"]
    assert len(data.train.samples) == 1


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


def test_samples_come_back_from_disk_as_they_were_made(tmp_path: Path) -> None:
    first, again = (prepared(tmp_path, [USABLE, {"query": QUERY, "pos": ["x y", "z z"]}]) for _ in range(2))
    for one, other in zip(
        (first.train.samples[0], first.train.samples[1]), (again.train.samples[0], again.train.samples[1]), strict=True
    ):
        assert one.values == other.values
        assert all(np.array_equal(a.input_ids, b.input_ids) for a, b in zip(one.segments, other.segments, strict=True))

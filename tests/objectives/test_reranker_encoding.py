"""Rows of rerankers: the formats of ms-swift, sentence-transformers and FlagEmbedding become the same groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from encode_row import encode_row, encoder_of

from swift.config.sections import DataSection
from swift.data.conversation import Unusable
from swift.data.pipeline import prepare_data
from swift.data.samples import Segment
from swift.data.store import SampleSet
from swift.errors import DataError, ModelError
from swift_objectives.encodings.reranker import Documents, GenerativeRerankerEncoding, RerankerEncoding
from swift_testing.tokenizer import byte_tokenizer

TOKENIZER = byte_tokenizer()


def of(*, listwise: bool = False, generative: bool = False, **choice: Any) -> Any:
    documents = Documents(listwise, **choice)
    return GenerativeRerankerEncoding(documents, "y", "n") if generative else RerankerEncoding(documents)


def groups(row: dict[str, Any], encoding: Any, **section: Any) -> list[tuple[int, list[str]]]:
    """What a row becomes: per sample the number of right documents, and the texts."""
    samples = encode_row(encoder_of(TOKENIZER, encoding, **section), row)
    for sample in samples:
        assert sample.values["documents"] == len(sample.segments)
        assert all(segment.weights.any() for segment in sample.segments)
    return [(int(each.values["positives"]), [text(segment) for segment in each.segments]) for each in samples]


def text(segment: Segment) -> str:
    return TOKENIZER.decode(segment.input_ids)


def shown(*documents: str) -> list[str]:
    return [f"<Query>: q\n<Document>: {document}<|im_end|>" for document in documents]


ONE = [{"role": "assistant", "content": "right"}]
TWO, THREE = ([{"role": "assistant", "content": each}] for each in ("wrong", "worse"))


@pytest.mark.parametrize(
    "row",
    [
        {
            "messages": [{"role": "user", "content": "q"}],
            "positive_messages": [ONE],
            "negative_messages": [TWO, THREE],
        },
        {"query": "q", "positive": "right", "negative": ["wrong", "worse"]},
        {"query": "q", "pos": ["right"], "neg": ["wrong", "worse"]},
        {"anchor": "q", "positive": "right", "negative_1": "wrong", "negative_2": "worse"},
        {"query": "q", "docs": ["wrong", "right", "worse"], "labels": [0, 1, 0]},
        {"question": "q", "documents": ["right", "wrong", "worse"], "label": [1.0, 0.0, 0.0]},
    ],
    ids=["ms-swift", "lists", "FlagEmbedding", "numbered columns", "documents and labels", "floats"],
)
@pytest.mark.parametrize("listwise", [True, False])
def test_every_format_becomes_the_same_group(row: dict[str, Any], listwise: bool) -> None:
    assert groups(row, of(listwise=listwise)) == [(1, shown("right", "wrong", "worse"))]


@pytest.mark.parametrize(("label", "positives"), [(1, 1), (0.0, 0), (True, 1)])
def test_a_labelled_document_is_a_sample_of_its_own(label: object, positives: int) -> None:
    row = {"query": "q", "document": "d", "label": label}
    assert groups(row, of()) == [(positives, shown("d"))]


def test_each_positive_is_ranked_among_negatives_only() -> None:
    """Each right document is ranked among the wrong ones alone."""
    row = {"query": "q", "positive": ["a", "b", "c"], "negative": ["x", "y", "z"]}
    assert groups(row, of(listwise=True)) == [(1, shown(right, "x", "y", "z")) for right in "abc"]
    assert groups(row, of()) == [(3, shown(*"abcxyz"))]
    few = {"max_positives": 2, "max_negatives": 1}
    assert groups(row, of(listwise=True, **few)) == [(1, shown(right, "x")) for right in "ab"]
    assert groups(row, of(**few)) == [(2, shown(*"abx"))]


def test_instruction_precedes_query_and_row_may_override() -> None:
    """The instruction stands before the query and a row may have its own."""
    row = {"query": "q", "document": "d", "label": 1}
    expected = "<Instruct>: find\n<Query>: q\n<Document>: d<|im_end|>"
    assert groups(row, of(instruction="find"))[0][1] == [expected]
    assert groups({**row, "instruction": "find"}, of(instruction="other"))[0][1] == [expected]
    messages = [{"role": "system", "content": "find"}, {"role": "user", "content": "q"}]
    assert groups({"messages": messages, "positive_messages": [[{"role": "user", "content": "d"}]]}, of())[0][1] == [
        expected
    ]


def test_generative_reranker_prompt_matches_qwen3_reranker() -> None:
    """A language model gets the prompt of Qwen3 Reranker, and only the yes or no counts."""
    row = {"query": "q", "positive": "right", "negative": ["wrong"]}
    encoding = of(generative=True, instruction="find")
    (sample,) = encode_row(encoder_of(TOKENIZER, encoding), row)
    for segment, document in zip(sample.segments, ("right", "wrong"), strict=True):
        assert text(segment) == (
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
            'provided. Note that the answer can only be "y" or "n".<|im_end|>\n'
            f"<|im_start|>user\n<Instruct>: find\n<Query>: q\n<Document>: {document}<|im_end|>\n"
            "<|im_start|>assistant\ny"
        )
        assert segment.weights.nonzero()[0].tolist() == [len(segment) - 1]


@pytest.mark.parametrize(
    ("row", "listwise", "reason"),
    [
        ({"query": "q", "positive": "a"}, True, "no wrong document"),
        ({"query": "q", "positive": "a", "negative": []}, True, "no wrong document"),
        ({"query": "q", "positive": [], "negative": ["a"]}, True, "no right document"),
        ({"query": "q", "positive": [], "negative": []}, False, "no documents"),
        ({"query": "q", "positive": "a", "negative": ["b", "a"]}, False, "a document is both right and wrong"),
        ({"query": "  ", "positive": "a", "negative": "b"}, False, "empty query"),
        ({"query": "q", "positive": "a", "negative": ["b", " "]}, False, "empty document"),
        ({"query": "q", "positive": 3}, False, "not a string"),
        ({"query": "q", "document": "a", "label": 0.7}, False, "malformed label"),
        ({"query": "q", "docs": ["a", "b"], "labels": [1]}, False, "malformed label"),
        ({"messages": [{"role": "user", "content": "q"}], "positive_messages": "no"}, False, "malformed JSON"),
        ({"messages": [{"role": "user", "content": "q"}], "positive_messages": ["a"]}, False, "malformed messages"),
        ({"messages": ONE, "positive_messages": [ONE]}, False, "malformed query"),
        ({"messages": [{"role": ["user"], "content": "q"}], "positive_messages": [ONE]}, False, "malformed query"),
    ],
)
def test_row_without_candidates_reports_reason(row: dict[str, Any], listwise: bool, reason: str) -> None:
    with pytest.raises(Unusable) as unusable:
        groups(row, of(listwise=listwise))
    assert unusable.value.reason == reason


def prepared(tmp_path: Path, encoding: Any, rows: list[dict[str, Any]]) -> SampleSet:
    settings = DataSection(cache=tmp_path / "cache", workers=1)
    train = prepare_data(settings, TOKENIZER, encoding=encoding, seed=1, say=lambda _: None, rows=rows).train
    assert train is not None
    return train.samples


def test_groups_of_different_sizes_are_cached(tmp_path: Path) -> None:
    """Groups of different sizes are kept on disk with their numbers."""
    rows = [
        {"query": "q", "positive": ["a", "b"], "negative": ["x", "y", "z"]},
        {"query": "q", "positive": ["a"], "negative": []},
        {"query": "q", "positive": ["a"], "negative": ["x"]},
    ]
    train = prepared(tmp_path, of(), rows)
    assert [(len(each.segments), dict(each.values)) for each in (train[index] for index in range(3))] == [
        (5, {"positives": 2.0, "documents": 5.0}),
        (1, {"positives": 1.0, "documents": 1.0}),
        (2, {"positives": 1.0, "documents": 2.0}),
    ]
    listwise = prepared(tmp_path, of(listwise=True), rows)
    assert [len(listwise[index].segments) for index in range(len(listwise))] == [4, 4, 2]


def test_unknown_reranker_columns_list_expected_ones(tmp_path: Path) -> None:
    """Columns that no reranker reads are refused with those that it does."""
    with pytest.raises(DataError, match="no query") as refusal:
        prepared(tmp_path, of(), [{"a": "b"}])
    assert "query, positive, negative" in str(refusal.value.hint)
    with pytest.raises(DataError, match="no labels"):
        prepared(tmp_path, of(), [{"query": "q", "document": "d"}])


def test_right_truncated_prompt_is_skipped() -> None:
    row = {"query": "q", "positive": "right" * 100, "negative": ["wrong"]}
    with pytest.raises(Unusable) as unusable:
        groups(row, of(generative=True), max_length=300, truncation="right")
    assert unusable.value.reason == "too long"
    (cut,) = groups(row, of(generative=True), max_length=300, truncation="left")
    assert cut[1][0].endswith("right<|im_end|>\n<|im_start|>assistant\ny")


def test_tokenizer_without_chat_template_is_refused() -> None:
    plain = byte_tokenizer()
    plain.chat_template = None
    with pytest.raises(ModelError, match="chat template"):
        encode_row(encoder_of(plain, of(generative=True)), {"query": "q", "positive": "a", "negative": "b"})

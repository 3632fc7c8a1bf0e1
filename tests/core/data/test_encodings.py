"""Encodings as objects: those of core leave what is on disk as it was, and one of a plugin's own works everywhere."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelled_encoding import LabelledEncoding
from named_encodings import encoding_of
from rich.console import Console
from tokenizers.processors import TemplateProcessing

from swift.config.sections import DataSection
from swift.data.batch import collate
from swift.data.corpus import corpus_of
from swift.data.encode import SampleEncoder
from swift.data.encodings import EncodedRow
from swift.data.pipeline import PreparedData, cache_key, prepare_data
from swift.data.preview import preview
from swift.data.samples import Encoded
from swift.errors import DataError, PluginError
from swift_testing.tokenizer import byte_tokenizer

ROWS: list[dict[str, Any]] = [
    {"text": f"text {index}", "label": index % 3, "source": "made up", **({"difficulty": 0.5} if index % 2 else {})}
    for index in range(12)
]
ROW = {"query": "q", "response": "good", "rejected_response": "bad", "label": True, "text": "t"}


def prepared(tmp_path: Path, encoding: Any, rows: Any = ROWS, **section: Any) -> PreparedData:
    settings = DataSection(cache=tmp_path / "cache", workers=1, **section)
    given = {"rows": rows} if not section.get("streaming") else {}
    return prepare_data(settings, byte_tokenizer(), encoding=encoding_of(encoding), seed=1, say=lambda _: None, **given)


def test_whatever_decides_about_tokens_is_in_the_cache_key() -> None:
    """The encoding and its settings, those of the data section, the tokenizer, its special tokens and its template."""
    named, framed, written = byte_tokenizer(), byte_tokenizer(), byte_tokenizer()
    named.add_special_tokens({"sep_token": "<|im_start|>"})
    framed.backend_tokenizer.post_processor = TemplateProcessing(single="$A $A", special_tokens=[])
    written.chat_template = "other" + written.chat_template
    settings = [{"system": "S"}, {"max_length": 77}, {"truncation": "left"}, {"loss_on": "all"}]
    variants: list[tuple[Any, Any, dict[str, Any]]] = [
        *((tokenizer, "chat", {}) for tokenizer in (byte_tokenizer(), named, framed, written)),
        *((byte_tokenizer(), encoding, {}) for encoding in ("text", "kto", "preference", LabelledEncoding())),
        (byte_tokenizer(), LabelledEncoding(classes=4), {}),
        *((byte_tokenizer(), "chat", each) for each in (*settings, {"template_kwargs": {"a": 1}})),
    ]
    keys = []
    for tokenizer, encoding, section in variants:
        encoder = SampleEncoder(tokenizer, DataSection(**section), encoding_of(encoding))
        keys.append(cache_key(corpus_of([ROW], "rows", encoder.section, encoder.encoding), encoder))
    assert len(set(keys)) == len(variants)
    tokenizer, encoding, section = variants[0]
    again = SampleEncoder(byte_tokenizer(), DataSection(workers=3), encoding_of(encoding))
    assert cache_key(corpus_of([ROW], "rows", again.section, again.encoding), again) == keys[0]


def test_plugin_encoding_is_cached_with_values(tmp_path: Path) -> None:
    """An encoding of a plugin's own is stored with its values and found again."""
    first = prepared(tmp_path, LabelledEncoding()).train
    assert first is not None
    samples = [first.samples[index] for index in range(12)]
    assert [int(sample.values["label"]) for sample in samples] == [index % 3 for index in range(12)]
    assert [sample.values["difficulty"] for sample in samples[1::2]] == [0.5] * 6
    assert all(np.isnan(sample.values["difficulty"]) for sample in samples[::2])
    assert [len(sample.segments) for sample in samples] == [1] * 12
    assert first.samples.facts(4).values["label"] == 1.0
    assert first.report.lines()[0].startswith("train_dataset: 12 rows, 12 samples, ")
    assert first.report.unused_columns == ["source"]
    assert collate([samples[index] for index in (1, 3, 5)], flat=True).values["label"].tolist() == [1.0, 0.0, 2.0]
    console = Console(width=200)
    with console.capture() as shown:
        console.print(preview(byte_tokenizer(), samples[1], LabelledEncoding()))
    assert "document: 7 tokens" in shown.get()
    assert "label 1, difficulty 0.5" in shown.get()


def test_unusable_plugin_rows_are_counted_by_reason(tmp_path: Path) -> None:
    """Rows that an encoding of a plugin's own cannot use are counted by its reasons."""
    data = prepared(tmp_path, LabelledEncoding(classes=2))
    assert data.report.rejected["unknown class"].count == 4
    assert data.report.rejected["unknown class"].detail == "the label is 2, and there are 2 classes"


def test_wrong_format_lists_columns_of_encoding(tmp_path: Path) -> None:
    """A dataset of another format is refused with the columns that the encoding reads."""
    with pytest.raises(DataError, match="no column 'text'; the columns are body, label") as error:
        prepared(tmp_path, LabelledEncoding(), [{"body": "x", "label": 1}])
    assert "The columns can be text and label." in str(error.value.hint)


def test_plugin_encoding_stream_matches_cache(tmp_path: Path) -> None:
    """A stream of a plugins encoding holds the samples of the store."""
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    whole = prepared(tmp_path, LabelledEncoding()).train
    stream = prepared(tmp_path, LabelledEncoding(), streaming=True, train=(str(file),)).stream
    assert whole is not None
    assert stream is not None
    for index, sample in enumerate(islice(stream.epoch(0), 12)):
        assert sample.sample_id == index
        assert sample.values["label"] == whole.samples[index].values["label"]
        np.testing.assert_array_equal(sample.segments[0].input_ids, whole.samples[index].segments[0].input_ids)


class Undeclared(LabelledEncoding):
    values = ("difficulty",)


class Splitting(LabelledEncoding):
    segment_names = ("left", "right")


class Forgetful(LabelledEncoding):
    def encode(self, row: Any, encoder: Any) -> Any:
        yield from encoder.segment(row.sample.conversation, row.location)


class Impatient(LabelledEncoding):
    def encode(self, row: Any, encoder: Any) -> Any:
        return EncodedRow(())


class Advising(LabelledEncoding):
    def encode(self, row: Any, encoder: Any) -> Any:
        segment = yield from encoder.segment(row.sample.conversation, row.location)
        values = {"advantage": np.ones(len(segment), dtype=np.float32)}
        return EncodedRow((Encoded(0, (replace(segment, token_values=values),), values={"label": 1.0}),))


class Unkeyed(LabelledEncoding):
    def __init__(self) -> None:
        super().__init__()
        self.lookup = object()


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        (Undeclared(), "made a sample with the values label.*declares difficulty"),
        (Splitting(), "made a sample with 1 segments, and declares left, right"),
        (Advising(), "made a sample with the token_values .*advantage.*and declares none"),
        (Forgetful(), "returned None"),
        (Impatient(), "should be a generator that returns an EncodedRow"),
        (Unkeyed(), "holds values that are not JSON"),
    ],
    ids=["undeclared values", "undeclared segments", "values per token", "no result", "no generator", "no key"],
)
def test_undeclared_encoding_output_is_not_dropped(tmp_path: Path, encoding: LabelledEncoding, message: str) -> None:
    """What an encoding does not declare is never dropped silently."""
    with pytest.raises(PluginError, match=message):
        prepared(tmp_path, encoding)


class AskingForNothing(LabelledEncoding):
    def encode(self, row: Any, encoder: Any) -> Any:
        assert (yield []) == []
        return (yield from super().encode(row, encoder))


def test_row_that_asks_for_nothing_is_kept(tmp_path: Path) -> None:
    """An encoding may ask for the tokens of no string, such as those of an empty list of documents."""
    train = prepared(tmp_path, AskingForNothing()).train
    assert train is not None
    assert len(train.samples) == 12

"""Stores that independent jobs build and one manifest joins, against the store that one job writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from named_encodings import encoding_of

from swift.config.sections import DataSection
from swift.data import store, store_index
from swift.data.corpus import open_corpus
from swift.data.encode import SampleEncoder
from swift.data.pipeline import Prepared, prepare_data
from swift.data.shards import Shard, build_shard, join_shards
from swift.data.store import SampleSet
from swift.errors import ConfigError, DataError, UsageError
from swift_testing.tokenizer import byte_tokenizer

ROWS: list[dict[str, Any]] = [
    {"prompt": f"question {i}", "completion": "x" * (i % 7), "rejected_response": "y" * (i % 5 + 1), "margin": i / 4}
    for i in range(23)
]
"""Every seventh has no answer and cannot be used."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, rows in (("a", ROWS[:9]), ("b", ROWS[9:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def section_of(folder: Path, **settings: Any) -> DataSection:
    names = (str(folder / "a.jsonl"), str(folder / "b.jsonl"))
    return DataSection(**{"train": names, "max_length": 80, "cache": folder / "cache", "columns": {}, **settings})


def build(folder: Path, shard: str, encoding: str = "chat", tokenizer: Any = None, **settings: Any) -> None:
    section = section_of(folder, **settings)
    encoder = SampleEncoder(tokenizer or byte_tokenizer(), section, encoding_of(encoding))
    corpus = open_corpus(section.train, section, encoder.encoding)
    build_shard(corpus, encoder, folder / "tokens", Shard.parse(shard), say=lambda line: None)


def opened(section: DataSection, encoding: str = "chat") -> Prepared:
    data = prepare_data(section, byte_tokenizer(), encoding=encoding_of(encoding), seed=0, say=lambda line: None)
    assert data.train is not None
    return data.train


def contents(samples: SampleSet) -> list[Any]:
    return [
        (
            each.sample_id,
            [(part.input_ids.tolist(), part.weights.tolist()) for part in each.segments],
            {name: value for name, value in each.values.items() if not np.isnan(value)},
        )
        for each in (samples[index] for index in range(len(samples)))
    ]


@pytest.mark.parametrize(("encoding", "count"), [("chat", 3), ("preference", 4), ("chat", 30)])
def test_joined_shards_hold_what_one_job_writes(data: Path, encoding: str, count: int) -> None:
    for number in reversed(range(1, count + 1)):
        build(data, f"{number}/{count}", encoding)
    join_shards(data / "tokens")
    joined = opened(section_of(data, train=(str(data / "tokens"),)), encoding)
    whole = opened(section_of(data), encoding)
    assert contents(joined.samples) == contents(whole.samples)
    for name in ("lengths", "loss_weights", "sample_ids", "fingerprint"):
        np.testing.assert_array_equal(getattr(joined.samples, name), getattr(whole.samples, name))
    np.testing.assert_array_equal(joined.samples.column("margin"), whole.samples.column("margin"))
    assert [vars(joined.samples.facts(at)) for at in range(3)] == [vars(whole.samples.facts(at)) for at in range(3)]
    assert joined.store.longest == whole.store.longest
    assert joined.report.as_dict() == whole.report.as_dict()
    assert joined.location(3).startswith(str(data / "a.jsonl"))


def test_joining_shards_maps_no_column_and_opening_reads_no_token(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory stays."""
    for number in (1, 2):
        build(data, f"{number}/2")
    with monkeypatch.context() as patch:
        patch.setattr(store, "map_column", lambda path, dtype: pytest.fail(f"{path} is mapped"))
        join_shards(data / "tokens")
    for shard in (data / "tokens").glob("shard-*"):
        shutil.rmtree(shard)
    samples = opened(section_of(data, train=(str(data / "tokens"),))).samples
    assert samples.facts(4).tokens == samples.lengths[4] > 0
    with pytest.raises(DataError, match=r"shard-00001-of-00002 is not what it was.*"):
        samples[0]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: shutil.rmtree(data / "tokens" / "shard-00002-of-00003"), r"missing: 2/3"),
        (lambda data: shutil.rmtree(data / "tokens"), "There are no shards"),
        (lambda data: build(data, "1/2"), "different splits: 1 of 2 and 3 of 3"),
        (lambda data: (data / "tokens/shard-00003-of-00003/ids.bin").write_bytes(b"1234"), "00003-of-00003 is damaged"),
        (lambda data: rebuilt(data, max_length=60), r"1/3 and 2/3 .* data.max_length \(80 and 60\) differs"),
        (lambda data: rebuilt(data, tokenizer=other_template()), "1/3 and 2/3 .* the chat template differs"),
        (lambda data: changed(data), "1/3 and 2/3 .* the content of the data set differs"),
    ],
)
def test_shards_that_do_not_fit_together_are_named(data: Path, spoil: Callable[[Path], object], message: str) -> None:
    for number in (1, 2, 3):
        build(data, f"{number}/3")
    spoil(data)
    with pytest.raises(DataError, match=message):
        join_shards(data / "tokens")
    assert not (data / "tokens" / "index.json").exists()


def rebuilt(data: Path, **settings: Any) -> None:
    shutil.rmtree(data / "tokens" / "shard-00002-of-00003")
    build(data, "2/3", **settings)


def other_template() -> Any:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ '' }}" + str(tokenizer.chat_template)
    return tokenizer


def changed(data: Path) -> None:
    with (data / "b.jsonl").open("a") as file:
        file.write(json.dumps(ROWS[1]) + "\n")
    rebuilt(data)


def test_existing_shard_is_reused_for_itself_only(data: Path) -> None:
    """An existing shard is not built again, and no other shard replaces it."""
    build(data, "1/2")
    before = (data / "tokens/shard-00001-of-00002/ids.bin").stat()
    build(data, "1/2")
    assert (data / "tokens/shard-00001-of-00002/ids.bin").stat().st_ino == before.st_ino
    with pytest.raises(DataError, match=r"there already.*data.max_length \(80 and 60\)"):
        build(data, "1/2", max_length=60)


def test_a_run_with_other_settings_than_the_data_is_refused(data: Path) -> None:
    build(data, "1/1")
    tokens = (str(data / "tokens"),)
    with pytest.raises(DataError, match="have not been joined"):
        opened(section_of(data, train=tokens))
    join_shards(data / "tokens")
    with pytest.raises(ConfigError, match=r"data.max_length \(80 and 70\), data.loss_on \(\"auto\" and \"all\"\)"):
        opened(section_of(data, train=tokens, max_length=70, loss_on="all"))
    with pytest.raises(ConfigError, match=r"the encoding \(chat and preference\)"):
        opened(section_of(data, train=tokens), "preference")
    with pytest.raises(ConfigError, match=r"data.split_ratio holds rows out"):
        opened(section_of(data, train=tokens, split_ratio=0.5))
    with pytest.raises(DataError, match="cannot be combined with other data sets"):
        opened(section_of(data, train=(str(data / "a.jsonl"), *tokens)))


def test_rows_are_refused_where_only_tokens_are_there(data: Path) -> None:
    build(data, "1/1")
    join_shards(data / "tokens")
    section = section_of(data, train=(str(data / "tokens"),))
    with pytest.raises(DataError, match=r"b.jsonl, row 1 was requested"):
        opened(section).corpus.row(9)
    with pytest.raises(DataError, match="tokenised data"):
        open_corpus(section.train, section, encoding_of("chat"))


@pytest.mark.parametrize("text", ["0/8", "9/8", "3", "1/0", "a/b", "-1/8", "1/2/3"])
def test_what_is_no_shard_is_answered_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="is no shard"):
        Shard.parse(text)


def test_all_rows_are_in_one_shard_each() -> None:
    for rows in (0, 1, 7, 23):
        parts = [Shard(number, 5).of(rows) for number in range(1, 6)]
        assert [row for part in parts for row in part] == list(range(rows))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_index_is_counted_in_blocks(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store has the same index however many numbers are held in memory at a time."""
    whole = opened(section_of(data)).samples
    monkeypatch.setattr(store_index, "_BLOCK", 4)
    samples = opened(section_of(data, cache=data / "other")).samples
    assert contents(samples) == contents(whole)
    assert samples.lengths.tolist() == whole.lengths.tolist()
    assert samples.loss_weights.tolist() == [samples[at].loss_weight for at in range(len(samples))]

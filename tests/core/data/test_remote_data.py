"""Data sets behind URLs, in the file system that fsspec keeps in memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from swift.config.sections import DataSection
from swift.data.corpus import open_corpus
from swift.data.encode import SampleEncoder
from swift.data.encodings import encoding_of
from swift.data.pipeline import Prepared, prepare_data
from swift.data.shards import Shard, build_shard, join_shards
from swift.errors import DataError
from swift_testing.tokenizer import byte_tokenizer

ROWS = [{"prompt": f"question {i}", "completion": "x" * (i % 7 + 1)} for i in range(20)]


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()


def lines(rows: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def prepared(name: str, cache: Path) -> Prepared:
    section = DataSection(train=(name,), cache=cache, max_length=80)
    data = prepare_data(section, byte_tokenizer(), encoding="chat", seed=0, say=lambda line: None)
    assert data.train is not None
    return data.train


def ids(data: Prepared) -> list[list[int]]:
    return [data.samples[at].segments[0].input_ids.tolist() for at in range(len(data.samples))]


def test_remote_file_and_folder_equal_local_rows(memory: Any, tmp_path: Path) -> None:
    """A file and a folder behind a URL are the rows of the local ones."""
    (tmp_path / "rows.jsonl").write_bytes(lines(ROWS))
    memory.pipe("/corpus/rows.jsonl", lines(ROWS))
    memory.pipe("/parts/a.jsonl", lines(ROWS[:8]))
    memory.pipe("/parts/below/b.jsonl", lines(ROWS[8:]))
    local = prepared(str(tmp_path / "rows.jsonl"), tmp_path / "one")
    for url in ("memory://corpus/rows.jsonl", "memory://parts"):
        remote = prepared(url, tmp_path / "cache")
        assert ids(remote) == ids(local)
        assert remote.report.sources[0].name.startswith(url)
    assert len(prepared("memory://corpus/rows.jsonl#5", tmp_path / "cache").samples) == 5


def test_a_url_is_copied_once_and_again_when_it_changes(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[str] = []
    whole = type(memory).get_file

    def counted(system: Any, path: str, *rest: Any, **more: Any) -> Any:
        copied.append(path)
        return whole(system, path, *rest, **more)

    monkeypatch.setattr(type(memory), "get_file", counted)
    memory.pipe("/corpus/rows.jsonl", lines(ROWS))
    for _ in range(2):
        assert len(prepared("memory://corpus/rows.jsonl", tmp_path).samples) == 20
    assert len(copied) == 1
    memory.pipe("/corpus/rows.jsonl", lines(ROWS[:10]))
    assert len(prepared("memory://corpus/rows.jsonl", tmp_path).samples) == 10
    assert len(copied) == 2


def test_tokenised_data_behind_a_url_is_trained_on(memory: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(lines(ROWS))
    section = DataSection(train=(str(tmp_path / "rows.jsonl"),), max_length=80, cache=tmp_path / "cache")
    encoder = SampleEncoder(byte_tokenizer(), section, encoding_of("chat"))
    corpus = open_corpus(section.train, section, encoder.encoding)
    for number in (1, 2):
        build_shard(corpus, encoder, tmp_path / "tokens", Shard(number, 2), say=lambda line: None)
    join_shards(tmp_path / "tokens")
    memory.put(str(tmp_path / "tokens"), "/tokens", recursive=True)
    assert ids(prepared("memory://tokens", tmp_path / "cache")) == ids(prepared(section.train[0], tmp_path / "cache"))


def test_interrupted_download_leaves_no_file(memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that breaks off leaves nothing that is taken for whole."""
    memory.pipe("/corpus/rows.jsonl", lines(ROWS))

    def broken(system: Any, path: str, target: str, **more: Any) -> None:
        Path(target).write_bytes(lines(ROWS)[:100])

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "get_file", broken)
        with pytest.raises(DataError, match="is incomplete: "):
            prepared("memory://corpus/rows.jsonl", tmp_path)
    assert len(prepared("memory://corpus/rows.jsonl", tmp_path).samples) == 20


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nowhere/rows.jsonl", "'memory://nowhere/rows.jsonl' does not exist"),
        ("ftp://host/rows.jsonl", "Unknown protocol ftp:// in"),
        ("reference://x", "Unknown protocol reference://"),
        ("simplecache::s3://bucket/x.jsonl", "no file or folder 'simplecache::s3"),
    ],
)
def test_a_url_that_cannot_be_opened_is_one_sentence(memory: Any, tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepared(url, tmp_path)


def test_url_without_package_names_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(DataError, match="needs the package adlfs") as raised:
        prepared("abfs://container/rows.jsonl", tmp_path)
    assert raised.value.hint.endswith("pip install adlfs")

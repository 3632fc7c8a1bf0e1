"""What `--dataset` may say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swift.data.sources.spec import parse_source
from swift.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.jsonl").write_text("{}")
    return tmp_path


def test_a_path_is_taken_literally_even_with_marks_in_it(folder: Path) -> None:
    (folder / "odd:name#3").write_text("{}")
    source = parse_source("odd:name#3", folder)
    assert (source.kind, source.location, source.limit) == ("path", str(folder / "odd:name#3"), None)


def test_a_number_after_a_hash_takes_so_many_rows(folder: Path) -> None:
    source = parse_source("train.jsonl#500", folder)
    assert (source.kind, source.location, source.limit) == ("path", str(folder / "train.jsonl"), 500)
    with pytest.raises(DataError, match="0 rows"):
        parse_source("train.jsonl#0", folder)


@pytest.mark.parametrize(
    ("text", "kind", "location", "subset", "limit"),
    [
        ("owner/name", "hf", "owner/name", None, None),
        ("hf::owner/name:fr#7", "hf", "owner/name", "fr", 7),
        ("ms::owner/name", "ms", "owner/name", None, None),
        ("squad", "hf", "squad", None, None),
        ("alpaca-en#10", "hf", "vicgalle/alpaca-gpt4", None, 10),
    ],
)
def test_hub_ids(folder: Path, text: str, kind: str, location: str, subset: str | None, limit: int | None) -> None:
    source = parse_source(text, folder)
    assert (source.kind, source.location, source.subset, source.limit) == (kind, location, subset, limit)


def test_a_folder_of_a_folder_is_a_subset(folder: Path) -> None:
    (folder / "corpus" / "fr").mkdir(parents=True)
    assert parse_source("corpus:fr", folder).location == str(folder / "corpus" / "fr")
    with pytest.raises(DataError, match="no subset 'de'"):
        parse_source("corpus:de", folder)


def test_a_missing_file_is_named_with_the_nearest_one_that_is_there(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no file or folder 'trian\.jsonl'.*Did you mean 'train\.jsonl'"):
        parse_source("trian.jsonl", folder)


def test_what_can_be_neither_a_path_nor_an_id_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="neither a file or folder"):
        parse_source("what is this", folder)


def write_info(folder: Path, **entries: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "dataset_info.json").write_text(json.dumps(entries))


def test_names_of_a_dataset_info_json_are_found_here_in_data_and_beside(folder: Path) -> None:
    write_info(folder, mine={"file_name": "train.jsonl"})
    write_info(folder / "data", other={"hf_hub_url": "owner/other", "subset": "en", "num_samples": 9})
    (folder / "far").mkdir()
    (folder / "far" / "x.json").write_text("[]")
    write_info(folder / "far", third={"file_name": "x.json"})
    assert parse_source("mine", folder).location == str(folder / "train.jsonl")
    other = parse_source("other", folder)
    assert (other.kind, other.location, other.subset, other.limit) == ("hf", "owner/other", "en", 9)
    assert parse_source("other#3", folder).limit == 3
    assert parse_source("far/third", folder).location == str(folder / "far" / "x.json")
    with pytest.raises(DataError, match="Did you mean 'other'"):
        parse_source("othre", folder)


def test_the_columns_of_an_entry_are_turned_into_our_names(folder: Path) -> None:
    write_info(
        folder,
        mine={"file_name": "train.jsonl", "columns": {"prompt": "q", "response": "a", "kto_tag": "good"}},
        plain={"file_name": "train.jsonl"},
    )
    assert parse_source("mine", folder).columns == {
        "q": "instruction",
        "a": "output",
        "good": "label",
        "input": "input",
    }
    assert parse_source("plain", folder).columns["output"] == "output"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"file_name": "gone.jsonl"}, "does not exist"),
        ({}, "neither file_name nor hf_hub_url"),
        ({"file_name": "train.jsonl", "formatting": "odd"}, "formatting 'odd'"),
        ({"file_name": "train.jsonl", "columns": {"promt": "q"}}, "unknown columns: promt"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_refused(folder: Path, entry: dict[str, object], message: str) -> None:
    write_info(folder, bad=entry)
    with pytest.raises(DataError, match=message):
        parse_source("bad", folder)

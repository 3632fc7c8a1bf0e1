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


def test_missing_file_suggests_nearest_path(folder: Path) -> None:
    """A missing file is named with the nearest one that is there."""
    with pytest.raises(DataError, match=r"no file or folder 'trian\.jsonl'.*Did you mean 'train\.jsonl'"):
        parse_source("trian.jsonl", folder)


def test_name_without_suffix_suggests_file(folder: Path) -> None:
    """A file typed without its suffix is suggested; the hub is not asked."""
    (folder / "qa.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"There is no data set 'qa'. Did you mean 'qa\.jsonl'"):
        parse_source("qa", folder)
    assert parse_source("hf::qa", folder).location == "qa"


def test_what_can_be_neither_a_path_nor_an_id_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="neither a file or folder"):
        parse_source("what is this", folder)


def write_info(folder: Path, **entries: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "dataset_info.json").write_text(json.dumps(entries))


def test_dataset_info_is_found_in_cwd_data_and_own_folder(folder: Path) -> None:
    """Names of a dataset info JSON are found here in data and next to."""
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
        ({}, "has no file_name, hf_hub_url or ms_hub_url"),
        ({"file_name": "train.jsonl", "formatting": "odd"}, "formatting 'odd'"),
        ({"file_name": "train.jsonl", "columns": {"promt": "q"}}, "unknown columns: promt"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_refused(folder: Path, entry: dict[str, object], message: str) -> None:
    write_info(folder, bad=entry)
    with pytest.raises(DataError, match=message):
        parse_source("bad", folder)


@pytest.fixture
def indexed(folder: Path) -> Path:
    """A folder `demo` with an index of two of its three files."""
    for name in ("chats", "pairs", "notes"):
        (folder / "demo").mkdir(exist_ok=True)
        (folder / "demo" / f"{name}.jsonl").write_text('{"q": "x", "a": "y"}\n')
    ours = {"prompt": "q", "response": "a"}
    write_info(
        folder / "demo",
        chats={"file_name": "chats.jsonl", "columns": ours},
        pairs={"file_name": "pairs.jsonl", "ranking": True},
    )
    return folder


@pytest.mark.parametrize("typed", ["demo", "demo/", "demo#3"])
def test_a_folder_with_an_index_demands_a_name(indexed: Path, typed: str) -> None:
    with pytest.raises(DataError, match=r"'demo.*' has a dataset_info\.json with 2 data sets") as error:
        parse_source(typed, indexed)
    assert error.value.hint == "Type --dataset demo/NAME. It has: chats, pairs."
    assert parse_source("demo/chats", indexed).location == str(indexed / "demo" / "chats.jsonl")


def test_a_folder_with_an_index_of_one_is_that_one(indexed: Path) -> None:
    """Not all files of the folder."""
    write_info(indexed / "demo", chats={"file_name": "chats.jsonl", "columns": {"prompt": "q", "response": "a"}})
    source = parse_source("demo#1", indexed)
    assert (source.location, source.limit) == (str(indexed / "demo" / "chats.jsonl"), 1)
    assert source.columns["q"] == "instruction"


def test_an_index_of_hugging_face_names_no_data_sets(folder: Path) -> None:
    (folder / "saved").mkdir()
    write_info(folder / "saved", features={"file_name": {"dtype": "string"}}, splits={"train": {}})
    assert parse_source("saved", folder).location == str(folder / "saved")


def test_a_name_after_a_colon_is_corrected(indexed: Path) -> None:
    with pytest.raises(DataError, match="'chats' is a name of") as error:
        parse_source("demo:chats#5", indexed)
    assert error.value.hint == "Did you mean --dataset demo/chats?"


@pytest.mark.parametrize("name", ["demo/chat", "./demo/chat", "other"])
def test_an_unknown_name_of_an_index_is_not_sought_on_the_hub(indexed: Path, name: str) -> None:
    write_info(indexed, mine={"file_name": "train.jsonl"})
    with pytest.raises(DataError, match=r"There is no data set '(chat|other)' in .*dataset_info\.json") as error:
        parse_source(name, indexed)
    assert ("Did you mean 'chats'?" in error.value.message) == (name != "other")
    assert "It has: " in str(error.value.hint)
    assert ("--dataset hf::" in str(error.value.hint)) == (not name.startswith("."))
    assert parse_source("alpaca-en", indexed).kind == "hf"
    assert parse_source("hf::other", indexed).kind == "hf"
    assert parse_source("owner/name", indexed).kind == "hf"

"""Reading rows from files, folders, hubs and Python objects."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from swift.config.sections import DataSection
from swift.data.corpus import Corpus, corpus_of, open_corpus
from swift.data.encodings import encoding_of
from swift.data.sources import unchanged_files
from swift.data.sources.read import read_file, read_path
from swift.data.sources.spec import parse_source
from swift.errors import DataError

ROWS: list[dict[str, Any]] = [{"prompt": f"q{i}", "completion": f"a\n{i} é"} for i in range(5)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    match path.suffix:
        case ".jsonl":
            path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
        case ".json":
            path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        case ".csv":
            import csv

            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        case ".parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    rows = read_path(parse_source(str(path)))
    assert [rows[index] for index in range(len(rows))] == list(rows)
    return list(rows)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    assert read(write(tmp_path / f"rows{suffix}", ROWS)) == ROWS


def test_a_folder_is_all_of_its_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    write(tmp_path / "a.jsonl", ROWS[:2])
    write(tmp_path / "b" / "c.parquet", ROWS[2:])
    (tmp_path / "dataset_info.json").write_text('{"features": {"query": {"dtype": "string"}}}')
    assert read(tmp_path) == ROWS


def test_a_line_of_a_text_file_is_a_document(tmp_path: Path) -> None:
    """A folder's text files are not read with its rows: they may be notes about them."""
    path = tmp_path / "wiki.txt"
    path.write_bytes("\ufeffOne.\r\n\n  \n {Zwei} ü\n".encode())
    rows = read_path(parse_source(str(path)))
    assert list(rows) == [{"text": "One."}, {"text": " {Zwei} ü"}]
    assert rows.location(1) == f"{path}:4"
    write(tmp_path / "a.jsonl", ROWS)
    assert read(tmp_path) == ROWS
    same = tmp_path / "wiki.jsonl"
    same.write_bytes(path.read_bytes())
    assert read_path(parse_source(str(same))).fingerprint() != rows.fingerprint()
    path.write_bytes(b"fine\n\xff\n")
    with pytest.raises(DataError, match=r"wiki\.txt:2: not UTF-8"):
        list(read_path(parse_source(str(path))))


def test_a_folder_that_datasets_saved_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    assert read(tmp_path / "saved") == ROWS


def test_json_lines_accept_blank_lines_bom_and_any_suffix(tmp_path: Path) -> None:
    """JSON lines may have blank lines a byte order mark and any suffix."""
    path = tmp_path / "rows.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"a": 2}\n')
    rows = read_path(parse_source(str(path)))
    assert list(rows) == [{"a": 1}, {"a": 2}]
    assert rows.location(1) == f"{path}:4"


def test_rows_are_found_wherever_blocks_of_the_file_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged_files, "BLOCK", 16)
    source = random.Random(3)
    for number in range(60):
        lines = [
            source.choice(["", " ", "\t\r", f'{{"a": {"1" * source.randint(1, 40)}}}'])
            for _ in range(source.randint(1, 9))
        ]
        content = "\n".join(lines) + source.choice(["", "\n"])
        (tmp_path / f"{number}.jsonl").write_text(content, encoding="utf-8")
        rows = read_file(tmp_path / f"{number}.jsonl")
        expected = [(at, json.loads(line)) for at, line in enumerate(content.split("\n"), 1) if line.strip()]
        assert list(rows) == [row for _, row in expected]
        for index in source.sample(range(len(expected)), len(expected)):
            at, row = expected[index]
            assert rows[index] == row
            assert rows.location(index) == f"{tmp_path / f'{number}.jsonl'}:{at}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', r"a\.jsonl:2: malformed JSON"),
        ("a.jsonl", b'{"a": 1}\n[1]\n', r"a\.jsonl:2: a row must be an object.*list"),
        ("a.jsonl", b'{"a": "\xff"}\n', r"a\.jsonl:1: not UTF-8"),
        ("a.json", b'[{"a": 1},\n {"a" 2}]', r"a\.json:2: malformed JSON"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", r"a\.csv:3: the number of fields"),
        ("a.csv", b"a,b\n1\n", r"a\.csv:2: the number of fields"),
        ("a.parquet", b"not parquet", "not a readable Parquet file"),
        ("a.doc", b"text", "name should end in"),
        ("a.jsonl", b"", "is empty"),
        ("a.json", b"[]", "is empty"),
    ],
)
def test_malformed_file_is_one_message_with_position(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


def test_folder_without_data_lists_expected_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no \.jsonl"):
        read(tmp_path)


def test_a_hub_id_that_cannot_be_had_offline_is_one_sentence() -> None:
    with pytest.raises(DataError, match="is not a local file, and loading it from") as error:
        open_corpus(["your_data"], DataSection(), encoding_of("chat"))
    assert error.value.exit_code == 2
    assert "\n" not in error.value.message


def test_unreachable_hub_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set that is not in the cache is refused after one question, without the retries of a download."""
    import datasets
    from huggingface_hub import HfApi, constants

    def unreachable(self: HfApi, name: str, **options: object) -> None:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "dataset_info", unreachable)
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: pytest.fail("tried to download"))
    with pytest.raises(DataError, match="failed: no route to the hub"):
        open_corpus(["owner/your_data"], DataSection(), encoding_of("chat"))


@pytest.mark.parametrize("lacking", ["modelscope", "addict"])  # it brings the second only with its extra
def test_modelscope_without_package_names_install(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "modelscope"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, lacking, None)
    with pytest.raises(DataError, match=f"the package {lacking} is not installed") as error:
        open_corpus(["ms::owner/name"], DataSection(), encoding_of("chat"))
    assert 'pip install "modelscope[datasets]"' in str(error.value.hint)


def test_several_datasets_are_concatenated_with_own_limits(tmp_path: Path) -> None:
    """Several data sets stand end to end and each keeps its limit."""
    one, other = write(tmp_path / "one.jsonl", ROWS), write(tmp_path / "other.csv", ROWS)
    corpus = open_corpus([f"{one}#2", str(other)], DataSection(), encoding_of("chat"))
    assert len(corpus) == 7
    assert [corpus.row(index)["prompt"] for index in range(7)] == ["q0", "q1", "q0", "q1", "q2", "q3", "q4"]
    assert corpus.location(1) == f"{one}:2"
    assert corpus.location(3) == f"{other}:5"  # answers span two lines, after the header


def test_rows_in_memory_are_as_good_as_files() -> None:
    datasets = pytest.importorskip("datasets")
    listed = corpus_of(ROWS, "train_dataset", DataSection(), encoding_of("chat"))
    arrow = corpus_of(datasets.Dataset.from_list(ROWS), "train_dataset", DataSection(), encoding_of("chat"))
    assert [listed.sample(i) for i in range(5)] == [arrow.sample(i) for i in range(5)]
    assert listed.location(0) == "train_dataset, row 1"
    with pytest.raises(DataError, match="is empty"):
        corpus_of([], "train_dataset", DataSection(), encoding_of("chat"))


def fingerprint(path: Path, **section: Any) -> str:
    corpus: Corpus = open_corpus([str(path)], DataSection(**section), encoding_of("chat"))
    return corpus.fingerprint()


def test_the_fingerprint_is_of_the_content_and_not_of_the_file(tmp_path: Path) -> None:
    one, copy = write(tmp_path / "one.jsonl", ROWS), write(tmp_path / "copy.jsonl", ROWS)
    assert fingerprint(one) == fingerprint(copy)
    assert fingerprint(one) != fingerprint(one, columns={"prompt": "query"})
    write(copy, [*ROWS[:-1], {"prompt": "q4", "completion": "a\n4 è"}])
    assert fingerprint(one) != fingerprint(copy)


def test_a_renamed_column_must_be_there(tmp_path: Path) -> None:
    path = write(tmp_path / "one.jsonl", ROWS)
    with pytest.raises(DataError, match=r"renames 'promt'.*Did you mean 'prompt'"):
        open_corpus([str(path)], DataSection(columns={"promt": "query"}), encoding_of("chat"))

"""Data files and folders that are damaged, hostile or not what their names say, and names of data sets."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import socket
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge import Case, judge, sampled
from spoil import NOT_A_FILE
from strategies import examples, not_a_file

Build = Callable[[Path], Sequence[str]]

ROW: dict[str, Any] = {"query": "What is two and two?", "response": "Four."}
LINE = json.dumps(ROW).encode() + b"\n"
TABLE = b"query,response\r\nHello,Hi\r\nTwo?,2\r\n"
TALK = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]}


def show(*datasets: str, sample: int = 1, command: Sequence[str] = ("sft",), flags: Sequence[str] = ()) -> list[str]:
    """The command line that reads data sets and shows samples of them."""
    options = ["--model", "model", "--strict", "--sample", str(sample), *flags]
    return ["config", "show", *command, *options, "--dataset", *datasets]


def content(name: str, data: bytes, **options: Any) -> Build:
    """Write a data file, in a folder of its own where its name has one."""

    def build(folder: Path) -> Sequence[str]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        return show(name, **{"sample": 3, **options})

    return build


# ---------------------------------------------------------------- bytes under every name

ZIPPED = io.BytesIO()
with zipfile.ZipFile(ZIPPED, "w") as archive:
    archive.writestr("rows.jsonl", LINE)

OTHER_CONTENT: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b" \t\r\n\n   \n" * 500,
    "NUL": b"\0",
    "NULs": bytes(100_000),
    "a byte order mark": b"\xef\xbb\xbf",
    "UTF-16": LINE.decode().encode("utf-16"),
    "UTF-32": LINE.decode().encode("utf-32"),
    "Latin-1": b'{"query": "\xe9t\xe9", "response": "\xe0"}\n',
    "an encoded surrogate": b'{"query": "\xed\xa0\x80", "response": "a"}\n',
    "gzip": gzip.compress(LINE, mtime=0),
    "zip": ZIPPED.getvalue(),
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(range(64)),
    "Parquet's first bytes": b"PAR1",
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "a program": b"\x7fELF" + bytes(range(200)),
    "random bytes": random.Random("random bytes").randbytes(5000),
    "HTML": b"<!DOCTYPE html><html><body>404 Not Found</body></html>\n",
    "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    "null": b"null\n",
    "a string": b'"hello"\n',
    "a list": b"[1, 2]\n",
    "lists of lists": b"[[1, 2], [3]]\n[[]]\n",
    "an empty object": b"{}\n",
    "cut off": b'{"query": "a", "respo',
    "a megabyte of brackets": b"[" * (1 << 20),
    "a megabyte of braces": b'{"a":' * (1 << 18),
    "a megabyte of digits": b"9" * (1 << 20),
    "a megabyte of backslashes": b'"' + b"\\" * (1 << 20),
    "a megabyte of line feeds": b"\n" * (1 << 20),
}
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


@examples(60)
@given(st.sampled_from(sorted(OTHER_CONTENT)), st.sampled_from(SUFFIXES), st.sampled_from(("", "folder/")))
def test_content_of_another_format_is_refused(template: Path, what: str, suffix: str, folder: str) -> None:
    name = f"{folder}rows{suffix}"
    judge(
        Case(f"{what} in {name}", content(name, OTHER_CONTENT[what]), names=("folder" if folder else name,)), template
    )


# ---------------------------------------------------------------- lines

LINES: dict[str, tuple[bytes, str, tuple[str, ...]]] = {
    "a last line without its end": (LINE + LINE.rstrip(), "works", ()),
    "a last line cut off": (LINE * 2 + LINE[:20], "refused", ("rows.jsonl:3", "column")),
    "a missing comma": (LINE + b'{"query": "a" "response": "b"}\n', "refused", ("rows.jsonl:2", "column 15")),
    "a byte order mark": (b"\xef\xbb\xbf" + LINE, "works", ()),
    "CRLF": (LINE.rstrip() + b"\r\n" + LINE.rstrip() + b"\r\n", "works", ()),
    "CR alone": (LINE.rstrip() + b"\r" + LINE.rstrip() + b"\r", "refused", ("rows.jsonl:1", "column")),
    "blank lines between": (LINE + b"\n \t \r\n" + LINE + b"{\n", "refused", ("rows.jsonl:5",)),
    "two rows in a line": (LINE.rstrip() * 2, "refused", ("rows.jsonl:1", "column")),
    "one array": (json.dumps([ROW, ROW]).encode(), "refused", ("rows.jsonl:1", "list")),
    "NUL in the second line": (LINE + b'{"query": "\0"}\n', "refused", ("rows.jsonl",)),
    "columns of mixed types": (
        b'{"query": "a", "response": "b"}\n{"query": 1, "response": ["x"]}\n',
        "refused",
        ("rows.jsonl:2",),
    ),
    "other columns in the second line": (LINE + b'{"body": "a"}\n', "refused", ("rows.jsonl:2", "body")),
    "two columns of one meaning": (b'{"query": "a", "prompt": "b", "response": "c"}\n', "refused", ("rows.jsonl:1",)),
    "a name of a column of 100 kB": (
        json.dumps({"x" * 100_000: 1}).encode(),
        "refused",
        ("rows.jsonl:1", "columns are"),
    ),
    "a name of a column with escapes": (b'{"\\u001b[31m\\n": 1}\n', "refused", ("rows.jsonl:1", "\\x1b[31m\\n")),
    "a string of 200 kB": (
        json.dumps({**ROW, "query": "x" * 200_000}).encode(),
        "refused",
        ("rows.jsonl:1", "too long"),
    ),
    "a second line of 70 MB": (LINE + b" " * (70 << 20) + LINE, "refused", ("rows.jsonl:2", "bytes")),
}
CASES = [Case(f"lines: {name}", content("rows.jsonl", *given[:1]), *given[1:]) for name, given in LINES.items()]

ARRAYS: dict[str, tuple[bytes, str, tuple[str, ...]]] = {
    "rows": (json.dumps([ROW, ROW], indent=1).encode(), "works", ()),
    "a byte order mark and blanks": (b"\xef\xbb\xbf \n\t" + json.dumps([ROW]).encode(), "works", ()),
    "a number among the rows": (json.dumps([ROW, 5]).encode(), "refused", ("rows.json, row 2",)),
    "cut off": (json.dumps([ROW, ROW], indent=1).encode()[:-20], "refused", ("rows.json:",)),
    "text after it": (json.dumps([ROW]).encode() + b"\nhello", "refused", ("rows.json:2",)),
    "nothing in it": (b"[]", "refused", ("rows.json", "is empty")),
    "a row of 200 levels": (b'[{"query": ' + b"[" * 200 + b"]" * 200 + b"}]", "refused", ("rows.json",)),
    "digits in it": (b"[" + b"9" * 5000 + b"]", "refused", ("rows.json",)),
    "an object around the rows": (json.dumps({"data": [ROW]}).encode(), "refused", ("rows.json:1", "data")),
}
CASES += [Case(f"array: {name}", content("rows.json", *given[:1]), *given[1:]) for name, given in ARRAYS.items()]

TABLES: dict[str, tuple[bytes, str, tuple[str, ...]]] = {
    "a table": (TABLE, "works", ()),
    "a byte order mark": (b"\xef\xbb\xbf" + TABLE, "works", ()),
    "a header alone": (b"query,response\n", "refused", ("rows.csv", "is empty")),
    "a header twice": (b"query,response,query\na,b,c\n", "refused", ("rows.csv:1", "'query'")),
    "too many fields": (TABLE + b"a,b,c\n", "refused", ("rows.csv:4", "fields")),
    "an open quote": (TABLE + b'"a,b\nc,d\n', "refused", ("rows.csv:4", "CSV")),
    "semicolons": (b"query;response\na;b\n", "refused", ("rows.csv", "query;response")),
    "empty fields": (b"query,response\n,\n", "refused", ("rows.csv:2",)),
    "NUL": (TABLE + b"a,\0\n", "refused", ("rows.csv",)),
    "a field of 200 kB": (b"query,response\na," + b"x" * 200_000 + b"\n", "refused", ("rows.csv:2", "too long")),
    "messages in JSON": (
        b'messages\n"' + json.dumps(TALK["messages"]).encode().replace(b'"', b'""') + b'"\n',
        "works",
        (),
    ),
    "messages in broken JSON": (b'messages\n"[{"\n', "refused", ("rows.csv:2",)),
}
CASES += [Case(f"CSV: {name}", content("rows.csv", *given[:1]), *given[1:]) for name, given in TABLES.items()]


@examples(8)
@given(st.sampled_from(("2", "nan", "maybe", "TRUE", "0.0", "-1", "true false", "1e400", "\u0661")))
def test_label_in_a_table_is_handled_clearly(template: Path, label: str) -> None:
    table = f"query,response,label\na,b,{label}\n".encode()
    build = content("rows.csv", table, command=("rlhf", "--rlhf_type", "kto"))
    judge(Case(label, build, "either", ("rows.csv:2",)), template)


# ---------------------------------------------------------------- Parquet


def parquet(make: Callable[[Any, Any, Path], object], name: str = "rows.parquet", **options: Any) -> Build:
    """Write a file with pyarrow: `make(pyarrow, pyarrow.parquet, path)`."""

    def build(folder: Path) -> Sequence[str]:
        import pyarrow
        import pyarrow.parquet

        make(pyarrow, pyarrow.parquet, folder / name)
        return show(name, **{"sample": 3, **options})

    return build


def columns(**made: Callable[[Any], Any]) -> Callable[[Any, Any, Path], object]:
    return lambda pa, pq, path: pq.write_table(pa.table({name: make(pa) for name, make in made.items()}), path)


def damaged(damage: Callable[[bytes], bytes]) -> Build:
    def make(pa: Any, pq: Any, path: Path) -> None:
        pq.write_table(pa.Table.from_pylist([ROW] * 50), path)
        path.write_bytes(damage(path.read_bytes()))

    return parquet(make)


def bomb(pa: Any, pq: Any, path: Path) -> None:
    """Three gigabytes of one text of a megabyte."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array(["a" * 1_000_000]))
    pq.write_table(pa.table({"text": text}), path, compression="zstd", store_schema=False)


def zeros(pa: Any, pq: Any, path: Path) -> None:
    """135 million values in a list, a few more than a group of rows may have."""
    writer = pq.ParquetWriter(path, pa.schema([("text", pa.list_(pa.bool_()))]), compression="zstd")
    values = pa.Array.from_buffers(pa.bool_(), 135_000_000, [None, pa.py_buffer(bytes(135_000_000 // 8))])
    writer.write_table(pa.table({"text": pa.ListArray.from_arrays([0, 135_000_000], values)}))
    writer.close()


STRINGS = {"query": lambda pa: pa.array(["a", "b"]), "response": lambda pa: pa.array(["c", "d"])}
PARQUET: dict[str, tuple[Build, str, tuple[str, ...]]] = {
    "strings": (parquet(columns(**STRINGS)), "works", ()),
    "no rows": (parquet(columns(query=lambda pa: pa.array([], pa.string()))), "refused", ("rows.parquet", "is empty")),
    "cut off": (damaged(lambda data: data[:-5]), "refused", ("rows.parquet",)),
    "its end alone": (damaged(lambda data: data[-100:]), "refused", ("rows.parquet",)),
    "a footer of 2 GB": (damaged(lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1"), "refused", ("rows.parquet",)),
    "encrypted": (damaged(lambda data: data[:-4] + b"PARE"), "refused", ("rows.parquet",)),
    "3 GB in 1 kB": (parquet(bomb, command=("pt",)), "refused", ("rows.parquet", "unpacks")),
    "135 million values in a row": (parquet(zeros, command=("pt",)), "refused", ("rows.parquet", "134,217,728 values")),
    "a column twice": (
        parquet(lambda pa, pq, path: pq.write_table(pa.table([["a"], ["b"]], names=["query", "query"]), path)),
        "refused",
        ("rows.parquet", "'query'"),
    ),
    "a null column": (
        parquet(columns(query=lambda pa: pa.nulls(2), response=STRINGS["response"])),
        "refused",
        ("rows.parquet, row 1",),
    ),
    "strings that are not UTF-8": (
        parquet(
            columns(query=lambda pa: pa.array([b"\xff\xfe", b"b"]).view(pa.string()), response=STRINGS["response"])
        ),
        "refused",
        ("rows.parquet, row 1",),
    ),
    "messages": (parquet(lambda pa, pq, path: pq.write_table(pa.Table.from_pylist([TALK, TALK]), path)), "works", ()),
    "deep lists": (parquet(lambda pa, pq, path: pq.write_table(deep(pa, 120), path)), "refused", ("rows.parquet",)),
}


def deep(pa: Any, levels: int) -> Any:
    column = pa.array(["x"])
    for _ in range(levels):
        column = pa.ListArray.from_arrays([0, 1], column)
    return pa.table({"messages": column})


KINDS: dict[str, Callable[[Any], Any]] = {
    "int64": lambda pa: pa.array([1, 2]),
    "double": lambda pa: pa.array([float("nan"), float("inf")]),
    "bool": lambda pa: pa.array([True, False]),
    "binary": lambda pa: pa.array([b"\xff", b"a"]),
    "fixed binary": lambda pa: pa.array([b"ab", b"cd"], pa.binary(2)),
    "large string": lambda pa: pa.array(["a", "b"], pa.large_string()),
    "dictionary": lambda pa: pa.array(["a", "b"]).dictionary_encode(),
    "date": lambda pa: pa.array([1, 2], pa.int32()).cast(pa.date32()),
    "a date beyond Python": lambda pa: pa.array([2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32()),
    "timestamp beyond Python": lambda pa: pa.array([2**62, -(2**62)], pa.int64()).cast(pa.timestamp("us")),
    "timestamp of a zone that is not": lambda pa: pa.array([1, 2], pa.timestamp("us", tz="Nowhere/Atall")),
    "time": lambda pa: pa.array([1, 2], pa.time64("us")),
    "duration": lambda pa: pa.array([1, 2], pa.duration("us")),
    "decimal": lambda pa: pa.array([1, 2]).cast(pa.decimal128(38, 2)),
    "map": lambda pa: pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "list of maps": lambda pa: pa.array([[[("role", "user")]], []], pa.list_(pa.map_(pa.string(), pa.string()))),
    "struct": lambda pa: pa.array([{"role": "user"}, None]),
    "list of structs": lambda pa: pa.array([[{"role": 1, "content": {"a": [1]}}], []]),
    "list of lists": lambda pa: pa.array([[["a"]], [[]]]),
    "fixed list": lambda pa: pa.array([["a"], ["b"]], pa.list_(pa.string(), 1)),
    "half float": lambda pa: pa.array([1.0, 2.0]).cast(pa.float16()),
    "uint64": lambda pa: pa.array([2**64 - 1, 0], pa.uint64()),
}
COLUMNS: tuple[tuple[str, dict[str, Callable[[Any], Any]], tuple[str, ...]], ...] = (
    ("messages", {}, ("sft",)),
    ("query", STRINGS, ("sft",)),
    ("note", STRINGS, ("sft",)),
    ("label", STRINGS, ("rlhf", "--rlhf_type", "kto")),
)
CASES += [Case(f"Parquet: {name}", *given) for name, given in PARQUET.items()]


def flipped(changes: list[tuple[int, int]], data: bytes) -> bytes:
    """Overwrite some bytes."""
    changed = bytearray(data)
    for at, value in changes:
        changed[at % len(changed)] = value
    return bytes(changed)


flips = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=8)


@examples(25)
@given(flips, st.booleans())
def test_overwritten_bytes_of_a_table_are_handled_clearly(
    template: Path, changes: list[tuple[int, int]], in_arrow: bool
) -> None:
    damage = partial(flipped, changes)
    build = saved(arrow(damage)) if in_arrow else damaged(damage)
    judge(Case("flipped", build, "either", ("arrow" if in_arrow else "rows.parquet",)), template)


@examples(30)
@given(st.sampled_from(sorted(KINDS)), st.sampled_from(COLUMNS))
def test_column_of_any_type_is_handled_clearly(template: Path, kind: str, where: tuple[str, Any, Any]) -> None:
    column, base, command = where
    build = parquet(columns(**{**base, column: KINDS[kind]}), command=command)
    judge(Case(f"{column} of {kind}", build, "either", ("rows.parquet",)), template)


# ---------------------------------------------------------------- folders that datasets saved


def saved(change: Callable[[Path], object], *, splits: bool = False, name: str = "saved") -> Build:
    """Write what `save_to_disk` writes, and changes it."""

    def build(folder: Path) -> Sequence[str]:
        import pyarrow

        home = folder / "saved"
        inner = home / "train" if splits else home
        inner.mkdir(parents=True)
        table = pyarrow.Table.from_pylist([ROW] * 5)
        with pyarrow.ipc.new_stream(inner / "data-00000-of-00001.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "f", "_split": None}
        (inner / "state.json").write_text(json.dumps(state))
        (inner / "dataset_info.json").write_text("{}")
        if splits:
            (home / "dataset_dict.json").write_text('{"splits": ["train"]}')
        change(home)
        return show(name)

    return build


def state(text: str) -> Callable[[Path], object]:
    return lambda home: (home / "state.json").write_text(text)


def names_file(name: object) -> Callable[[Path], object]:
    return state(json.dumps({"_data_files": [{"filename": name}]}))


def arrow(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def damage(home: Path) -> None:
        file = home / "data-00000-of-00001.arrow"
        file.write_bytes(change(file.read_bytes()))

    return damage


def linked(home: Path) -> None:
    (home / "data-00000-of-00001.arrow").unlink()
    (home / "data-00000-of-00001.arrow").symlink_to("/etc/passwd")


SAVED: dict[str, tuple[Build, str, tuple[str, ...]]] = {
    "whole": (saved(lambda home: None), "works", ()),
    "with splits": (saved(lambda home: None, splits=True), "works", ()),
    "state cut off": (saved(state('{"_data')), "refused", ("state.json",)),
    "state a list": (saved(state("[]")), "refused", ("state.json",)),
    "state without files": (saved(state("{}")), "refused", ("state.json", "_data_files")),
    "no files": (saved(state('{"_data_files": []}')), "refused", ("saved", "is empty")),
    "a file that is not there": (saved(names_file("b.arrow")), "refused", ("b.arrow",)),
    "a file of another folder": (saved(names_file("../../model/config.json")), "refused", ("state.json", "leads out")),
    "a number for a file": (saved(names_file(5)), "refused", ("state.json",)),
    "the folder for a file": (saved(names_file(".")), "refused", ("saved",)),
    "a file that links out": (saved(linked), "refused", ("state.json", "link")),
    "a selection of rows": (
        saved(state('{"_data_files": [], "_indices_files": [{"filename": "i.arrow"}]}')),
        "refused",
        ("old version",),
    ),
    "arrow cut off": (saved(arrow(lambda data: data[:-100])), "refused", (".arrow",)),
    "arrow empty": (saved(arrow(lambda data: b"")), "refused", (".arrow",)),
    "arrow of zeros": (saved(arrow(lambda data: bytes(5000))), "refused", ()),
    "a split that is not there": (
        saved(lambda home: (home / "dataset_dict.json").write_text('{"splits": ["test"]}'), splits=True),
        "refused",
        ("test",),
    ),
    "a split of another folder": (
        saved(lambda home: (home / "dataset_dict.json").write_text('{"splits": ["../x"]}'), splits=True),
        "refused",
        ("dataset_dict.json", "leads out"),
    ),
    "splits of numbers": (
        saved(lambda home: (home / "dataset_dict.json").write_text('{"splits": [1, null]}'), splits=True),
        "refused",
        ("dataset_dict.json",),
    ),
}
CASES += [Case(f"saved: {name}", *given) for name, given in SAVED.items()]

# ---------------------------------------------------------------- dataset_info.json


def entry(written: object, name: str = "mine", **options: Any) -> Build:
    """Write a `dataset_info.json` (an object with one entry unless it is a text), and names the entry."""

    def build(folder: Path) -> Sequence[str]:
        text = written if isinstance(written, str) else json.dumps({"mine": written})
        (folder / "dataset_info.json").write_text(text)
        (folder / "rows.jsonl").write_bytes(LINE)
        return show(name, **options)

    return build


ENTRY: dict[str, tuple[object, str, tuple[str, ...]]] = {
    "a file": ({"file_name": "rows.jsonl", "columns": {"prompt": "query", "response": "response"}}, "works", ()),
    "cut off": ('{"mine": {', "refused", ("dataset_info.json",)),
    "a number": ("5", "refused", ("dataset_info.json",)),
    "digits": ('{"mine": ' + "9" * 5000 + "}", "refused", ("dataset_info.json",)),
    "nothing": ({}, "refused", ("dataset_info.json", "mine")),
    "a file that is not there": ({"file_name": "other.jsonl"}, "refused", ("other.jsonl",)),
    "a file above": ({"file_name": "../rows.jsonl"}, "refused", ("dataset_info.json", "leads out")),
    "an absolute file": ({"file_name": "/etc/passwd"}, "refused", ("dataset_info.json", "/etc/passwd")),
}
CASES += [Case(f"dataset_info: {name}", entry(given[0]), *given[1:]) for name, given in ENTRY.items()]

VAST = 10**400
GOOD_ENTRY: dict[str, Any] = {"file_name": "rows.jsonl", "columns": {"prompt": "query", "response": "response"}}
WRONG: dict[str, tuple[Any, ...]] = {
    "file_name": (5, True, [], ["rows.jsonl"], {}, "\0", "\ud800", "x" * 5000),
    "hf_hub_url": (5, [], {}, "a b", "x" * 5000),
    "formatting": (5, [], {}, "other", True, "\ud800"),
    "columns": (5, [], "a", {"prompt": 5}, {"prompt": []}, {"other": "a"}, {"prompt": {"a": 1}}),
    "tags": (5, [], "a", {"role_tag": 5}, {"user_tag": []}),
    "num_samples": (-1, 0, 1.5, True, "5", [], VAST),
    "subset": (5, []),
    "split": (5, [], {}),
}


@examples(35)
@given(st.sampled_from([(key, value) for key, values in WRONG.items() for value in values]))
def test_wrong_value_of_an_entry_is_refused(template: Path, setting: tuple[str, Any]) -> None:
    key, value = setting
    expected = "either" if value == VAST or (key == "hf_hub_url" and isinstance(value, str)) else "refused"
    judge(Case(key, entry({**GOOD_ENTRY, key: value}), expected, ("dataset_info.json",)), template)  # type: ignore[arg-type]


# ---------------------------------------------------------------- names

NAMES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "empty": ("", "refused", ("empty",)),
    "5,000 letters": ("x" * 5000, "refused", ("xxx",)),
    "5,000 folders": ("a/" * 5000 + "b.jsonl", "refused", ("b.jsonl",)),
    "NUL": ("a\0b.jsonl", "refused", ("jsonl",)),
    "a surrogate": ("caf\udce9.jsonl", "refused", ("--dataset", "surrogate")),
    "escape codes": ("\x1b[2Jrows.jsonl", "refused", ("rows.jsonl",)),
    "a home that is not": ("~nobody-of-this-name/rows.jsonl", "refused", ("nobody-of-this-name",)),
    "a misspelt file": ("dta.jsonl", "refused", ("'data.jsonl'",)),
    "no rows": ("data.jsonl#0", "refused", ("0 rows",)),
    "a negative number": ("data.jsonl#-1", "refused", ("data.jsonl#-1",)),
    "a scheme alone": ("hf::", "refused", ("hf::",)),
    "two schemes": ("hf::ms::a/b", "refused", ("'ms'",)),
    "a web address": ("https://example.com/rows.jsonl", "refused", ("example.com",)),
    "a subset above": ("model:../data.jsonl", "refused", ("leads out",)),
    "an absolute subset": ("model:/etc/passwd", "refused", ("/etc/passwd",)),
    "a subset of a file": ("data.jsonl:train", "refused", ("data.jsonl",)),
    "a subset with NUL": ("model:a\0b", "refused", ("model",)),
    "a folder above": ("..", "either", ()),
    "/dev/zero": ("/dev/zero", "refused", ("/dev/zero",)),
    "/proc/self/mem": ("/proc/self/mem", "refused", ("/proc/self/mem",)),
    "another ending": ("model/config.yaml", "refused", ("config.yaml",)),
}


def named(text: str, folder: Path) -> Sequence[str]:
    return show(text)


CASES += [Case(f"name: {name}", partial(named, given[0]), *given[1:]) for name, given in NAMES.items()]


def renamed(columns: str) -> Build:
    return lambda folder: show("data.jsonl", flags=["--columns", columns])


CASES += [
    Case(f"--columns {text[:20]}", renamed(text), "refused", ("columns",))
    for text in (
        "[]",
        "{",
        '{"messages": 5}',
        '{"a":' * 5000,
        "9" * 5000,
    )
]

# ---------------------------------------------------------------- what is no regular file


def special(make: Callable[[Path], object], name: str = "rows.jsonl") -> Build:
    def build(folder: Path) -> Sequence[str]:
        make(folder)
        return show(name)

    return build


def bound(folder: Path) -> None:
    """Leave the socket's file behind."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("rows.jsonl")


def many(folder: Path) -> None:
    (folder / "rows").mkdir()
    for index in range(3000):
        (folder / "rows" / f"{index}.txt").touch()
    for index in range(1500):
        (folder / "rows" / f"{index}.jsonl").write_bytes(LINE)


def looped(folder: Path) -> None:
    (folder / "rows").mkdir()
    (folder / "rows" / "rows.jsonl").write_bytes(LINE)
    (folder / "rows" / "again").symlink_to(folder / "rows")


def odd_names(folder: Path) -> None:
    (folder / "rows").mkdir()
    (folder / "rows" / "a\nb.jsonl").write_bytes(b"{\n")
    Path(os.fsdecode(os.fsencode(folder) + b"/rows/caf\xe9.jsonl")).write_bytes(LINE)


SPECIAL: dict[str, tuple[Build, str, tuple[str, ...]]] = {
    "a pipe in a folder": (
        special(lambda folder: ((folder / "rows").mkdir(), os.mkfifo(folder / "rows" / "a.jsonl")), "rows"),
        "refused",
        ("a.jsonl", "pipe"),
    ),
    "a pipe for dataset_info.json": (
        special(lambda folder: os.mkfifo(folder / "dataset_info.json"), "data.jsonl"),
        "works",
        (),
    ),
    "a pipe for state.json": (
        special(lambda folder: ((folder / "rows").mkdir(), os.mkfifo(folder / "rows" / "state.json")), "rows"),
        "refused",
        ("state.json", "pipe"),
    ),
    "a socket": (special(bound), "refused", ("rows.jsonl",)),
    "an empty folder": (special(lambda folder: (folder / "rows").mkdir(), "rows"), "refused", ("rows",)),
    "a folder that links to itself": (special(looped, "rows"), "works", ()),
    "1,500 files": (special(many, "rows"), "works", ()),
    "names that cannot be printed": (special(odd_names, "rows"), "refused", ("a\\nb.jsonl:1",)),
    "a subset that links out": (
        special(lambda folder: ((folder / "rows").mkdir(), (folder / "rows" / "etc").symlink_to("/etc")), "rows:etc"),
        "refused",
        ("link",),
    ),
    "an array of 5 GB of nothing": (
        special(
            lambda folder: ((folder / "rows.json").write_bytes(b"[" + b" " * 5000), os.truncate("rows.json", 5 << 30)),
            "rows.json",
        ),
        "refused",
        ("rows.json", "bytes"),
    ),
}
CASES += [Case(f"special: {name}", *given) for name, given in SPECIAL.items()]


@examples(16)
@given(not_a_file, st.sampled_from(SUFFIXES))
def test_data_file_that_is_no_file_is_refused(template: Path, how: str, suffix: str) -> None:
    name = f"rows{suffix}"
    judge(Case(how, special(lambda folder: NOT_A_FILE[how](folder / name), name), names=(name,)), template)


@pytest.mark.parametrize("case", sampled(CASES))
def test_data_file_is_handled_clearly(case: Case, template: Path) -> None:
    judge(case, template)

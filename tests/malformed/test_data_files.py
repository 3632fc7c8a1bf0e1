"""Data files and folders that are damaged, hostile or not what their names say, and names of data sets."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge import Build, Case, Table, judge, sampled, table
from spoil import NOT_A_FILE, put
from strategies import examples, not_a_file, wrong

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

OTHER_CONTENT: dict[str, bytes] = {
    "nothing": b"",
    "blanks": b" \t\r\n\n   \n" * 500,
    "NULs": bytes(100_000),
    "a byte order mark": b"\xef\xbb\xbf",
    "UTF-16": LINE.decode().encode("utf-16"),
    "Latin-1": b'{"query": "\xe9t\xe9", "response": "\xe0"}\n',
    "an encoded surrogate": b'{"query": "\xed\xa0\x80", "response": "a"}\n',
    "gzip": gzip.compress(LINE, mtime=0),
    "Parquet's first bytes": b"PAR1",
    "HTML": b"<!DOCTYPE html><html><body>404 Not Found</body></html>\n",
    "null": b"null\n",
    "an empty object": b"{}\n",
    "cut off": b'{"query": "a", "respo',
    "a megabyte of brackets": b"[" * (1 << 20),
    "a megabyte of braces": b'{"a":' * (1 << 18),
    "a megabyte of digits": b"9" * (1 << 20),
    "a megabyte of line feeds": b"\n" * (1 << 20),
}
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
contents = st.sampled_from(list(OTHER_CONTENT.values())) | st.binary(max_size=200)


@examples(50)
@given(contents, st.sampled_from(SUFFIXES), st.sampled_from(("", "folder/")))
def test_content_of_another_format_is_refused(template: Path, data: bytes, suffix: str, folder: str) -> None:
    name = f"{folder}rows{suffix}"
    judge(Case(f"{data[:40]!r} in {name}", content(name, data), names=("folder" if folder else name,)), template)


# ---------------------------------------------------------------- lines, arrays and tables

LINES: Table[bytes] = {
    "a last line without its end": (LINE + LINE.rstrip(),),
    "a last line cut off": (LINE * 2 + LINE[:20], "rows.jsonl:3", "column"),
    "a byte order mark": (b"\xef\xbb\xbf" + LINE,),
    "CRLF": (LINE.rstrip() + b"\r\n" + LINE.rstrip() + b"\r\n",),
    "CR alone": (LINE.rstrip() + b"\r" + LINE.rstrip() + b"\r", "rows.jsonl:1", "column"),
    "one array": (json.dumps([ROW, ROW]).encode(), "rows.jsonl:1", "list"),
    "columns of mixed types": (LINE + b'{"query": 1, "response": ["x"]}\n', "rows.jsonl:2"),
    "other columns in the second line": (LINE + b'{"body": "a"}\n', "rows.jsonl:2", "body"),
    "two columns of one meaning": (b'{"query": "a", "prompt": "b", "response": "c"}\n', "rows.jsonl:1"),
    "a name of a column of 100 kB": (json.dumps({"x" * 100_000: 1}).encode(), "rows.jsonl:1", "columns are"),
    "a name of a column with escapes": (b'{"\\u001b[31m\\n": 1}\n', "rows.jsonl:1", "\\x1b[31m\\n"),
    "a string of 200 kB": (json.dumps({**ROW, "query": "x" * 200_000}).encode(), "rows.jsonl:1", "too long"),
    "a second line of 70 MB": (LINE + b" " * (70 << 20) + LINE, "rows.jsonl:2", "bytes"),
}
ARRAYS: Table[bytes] = {
    "a byte order mark and blanks": (b"\xef\xbb\xbf \n\t" + json.dumps([ROW, ROW], indent=1).encode(),),
    "a number among the rows": (json.dumps([ROW, 5]).encode(), "rows.json, row 2"),
    "cut off": (json.dumps([ROW, ROW], indent=1).encode()[:-20], "rows.json:"),
    "text after it": (json.dumps([ROW]).encode() + b"\nhello", "rows.json:2"),
    "nothing in it": (b"[]", "rows.json", "is empty"),
    "a row of 200 levels": (b'[{"query": ' + b"[" * 200 + b"]" * 200 + b"}]", "rows.json"),
    "an object around the rows": (json.dumps({"data": [ROW]}).encode(), "rows.json:1", "data"),
}
IN_CSV = b'messages\n"' + json.dumps(TALK["messages"]).encode().replace(b'"', b'""') + b'"\n'
TABLES: Table[bytes] = {
    "a byte order mark": (b"\xef\xbb\xbf" + TABLE,),
    "a header twice": (b"query,response,query\na,b,c\n", "rows.csv:1", "'query'"),
    "too many fields": (TABLE + b"a,b,c\n", "rows.csv:4", "fields"),
    "an open quote": (TABLE + b'"a,b\nc,d\n', "rows.csv:4", "CSV"),
    "empty fields": (b"query,response\n,\n", "rows.csv:2"),
    "NUL": (TABLE + b"a,\0\n", "rows.csv"),
    "messages in JSON": (IN_CSV,),
    "messages in broken JSON": (b'messages\n"[{"\n', "rows.csv:2"),
}
CASES = [
    *table("lines", LINES, lambda data: content("rows.jsonl", data)),
    *table("array", ARRAYS, lambda data: content("rows.json", data)),
    *table("CSV", TABLES, lambda data: content("rows.csv", data)),
]


@examples(8)
@given(st.sampled_from(("2", "nan", "maybe", "TRUE", "0.0", "-1", "true false", "1e400", "\u0661")))
def test_label_in_a_table_is_handled_clearly(template: Path, label: str) -> None:
    data = f"query,response,label\na,b,{label}\n".encode()
    build = content("rows.csv", data, command=("rlhf", "--rlhf_type", "kto"))
    judge(Case(label, build, "either", ("rows.csv:2",)), template)


# ---------------------------------------------------------------- Parquet


def parquet(make: Callable[[Any, Any, Path], object], **options: Any) -> Build:
    """Write a file with pyarrow: `make(pyarrow, pyarrow.parquet, path)`."""

    def build(folder: Path) -> Sequence[str]:
        import pyarrow
        import pyarrow.parquet

        make(pyarrow, pyarrow.parquet, folder / "rows.parquet")
        return show("rows.parquet", **{"sample": 3, **options})

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


def deep(pa: Any, pq: Any, path: Path) -> None:
    column = pa.array(["x"])
    for _ in range(120):
        column = pa.ListArray.from_arrays([0, 1], column)
    pq.write_table(pa.table({"messages": column}), path)


def twice(pa: Any, pq: Any, path: Path) -> None:
    pq.write_table(pa.table([["a"], ["b"]], names=["query", "query"]), path)


STRINGS = {"query": lambda pa: pa.array(["a", "b"]), "response": lambda pa: pa.array(["c", "d"])}
PARQUET: Table[Build] = {
    "strings": (parquet(columns(**STRINGS)),),
    "messages": (parquet(lambda pa, pq, path: pq.write_table(pa.Table.from_pylist([TALK, TALK]), path)),),
    "no rows": (parquet(columns(query=lambda pa: pa.array([], pa.string()))), "rows.parquet", "is empty"),
    "cut off": (damaged(lambda data: data[:-5]), "rows.parquet"),
    "a footer of 2 GB": (damaged(lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1"), "rows.parquet"),
    "3 GB in 1 kB": (parquet(bomb, command=("pt",)), "rows.parquet", "unpacks"),
    "135 million values in a row": (parquet(zeros, command=("pt",)), "rows.parquet", "134,217,728 values"),
    "a column twice": (parquet(twice), "rows.parquet", "'query'"),
    "a null column": (parquet(columns(**{**STRINGS, "query": lambda pa: pa.nulls(2)})), "rows.parquet, row 1"),
    "deep lists": (parquet(deep), "rows.parquet"),
}
CASES += table("Parquet", PARQUET)
KINDS: dict[str, Callable[[Any], Any]] = {
    "double": lambda pa: pa.array([float("nan"), float("inf")]),
    "binary": lambda pa: pa.array([b"\xff", b"a"]),
    "dictionary": lambda pa: pa.array(["a", "b"]).dictionary_encode(),
    "a date beyond Python": lambda pa: pa.array([2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32()),
    "timestamp beyond Python": lambda pa: pa.array([2**62, -(2**62)], pa.int64()).cast(pa.timestamp("us")),
    "timestamp of a zone that is not": lambda pa: pa.array([1, 2], pa.timestamp("us", tz="Nowhere/Atall")),
    "decimal": lambda pa: pa.array([1, 2]).cast(pa.decimal128(38, 2)),
    "list of maps": lambda pa: pa.array([[[("role", "user")]], []], pa.list_(pa.map_(pa.string(), pa.string()))),
    "struct": lambda pa: pa.array([{"role": "user"}, None]),
    "list of structs": lambda pa: pa.array([[{"role": 1, "content": {"a": [1]}}], []]),
    "list of lists": lambda pa: pa.array([[["a"]], [[]]]),
}
COLUMNS: tuple[tuple[str, dict[str, Callable[[Any], Any]], tuple[str, ...]], ...] = (
    ("messages", {}, ("sft",)),
    ("query", STRINGS, ("sft",)),
    ("note", STRINGS, ("sft",)),
    ("label", STRINGS, ("rlhf", "--rlhf_type", "kto")),
)


@examples(30)
@given(st.sampled_from(sorted(KINDS)), st.sampled_from(COLUMNS))
def test_column_of_any_type_is_handled_clearly(template: Path, kind: str, where: tuple[str, Any, Any]) -> None:
    column, base, command = where
    build = parquet(columns(**{**base, column: KINDS[kind]}), command=command)
    judge(Case(f"{column} of {kind}", build, "either", ("rows.parquet",)), template)


# ---------------------------------------------------------------- folders that datasets saved

ARROW = "data-00000-of-00001.arrow"


def saved(change: Callable[[Path], object], *, splits: bool = False) -> Build:
    """Write what `save_to_disk` writes, and changes it."""

    def build(folder: Path) -> Sequence[str]:
        import pyarrow

        home = folder / "saved"
        inner = home / "train" if splits else home
        inner.mkdir(parents=True)
        rows = pyarrow.Table.from_pylist([ROW] * 5)
        with pyarrow.ipc.new_stream(inner / ARROW, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=2)
        state = {"_data_files": [{"filename": ARROW}], "_fingerprint": "f", "_split": None}
        (inner / "state.json").write_text(json.dumps(state))
        (inner / "dataset_info.json").write_text("{}")
        if splits:
            (home / "dataset_dict.json").write_text('{"splits": ["train"]}')
        change(home)
        return show("saved")

    return build


def state(content: object) -> Build:
    return saved(lambda home: (home / "state.json").write_text(json.dumps(content)))


def split(*names: object) -> Build:
    change = lambda home: (home / "dataset_dict.json").write_text(json.dumps({"splits": names}))  # noqa: E731
    return saved(change, splits=True)


def arrow(change: Callable[[bytes], bytes]) -> Build:
    return saved(lambda home: (home / ARROW).write_bytes(change((home / ARROW).read_bytes())))


def linked(home: Path) -> None:
    (home / ARROW).unlink()
    (home / ARROW).symlink_to("/etc/passwd")


SAVED: Table[Build] = {
    "whole": (saved(lambda home: None),),
    "state cut off": (saved(lambda home: (home / "state.json").write_text('{"_data')), "state.json"),
    "state without files": (state({}), "state.json", "_data_files"),
    "no files": (state({"_data_files": []}), "saved", "is empty"),
    "a file that is not there": (state({"_data_files": [{"filename": "b.arrow"}]}), "b.arrow"),
    "a file of another folder": (state({"_data_files": [{"filename": "../../x"}]}), "state.json", "leads out"),
    "a number for a file": (state({"_data_files": [{"filename": 5}]}), "state.json"),
    "a file that links out": (saved(linked), "state.json", "link"),
    "a selection of rows": (state({"_data_files": [], "_indices_files": [{"filename": "i.arrow"}]}), "old version"),
    "arrow cut off": (arrow(lambda data: data[:-100]), ".arrow"),
    "a split that is not there": (split("test"), "test"),
    "a split of another folder": (split("../x"), "dataset_dict.json", "leads out"),
    "splits of numbers": (split(1, None), "dataset_dict.json"),
}
CASES += table("saved", SAVED)


@examples(25)
@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=8), st.booleans())
def test_overwritten_bytes_of_a_table_are_handled_clearly(
    template: Path, changes: list[tuple[int, int]], in_arrow: bool
) -> None:
    def damage(data: bytes) -> bytes:
        changed = bytearray(data)
        for at, value in changes:
            changed[at % len(changed)] = value
        return bytes(changed)

    build = arrow(damage) if in_arrow else damaged(damage)
    judge(Case("flipped", build, "either", ("arrow" if in_arrow else "rows.parquet",)), template)


# ---------------------------------------------------------------- dataset_info.json

ENTRY: dict[str, Any] = {"file_name": "rows.jsonl", "columns": {"prompt": "query", "response": "response"}}


def entry(written: object, name: str = "mine") -> Build:
    """Write a `dataset_info.json`, an object with one entry unless it is a string, and name the entry."""

    def build(folder: Path) -> Sequence[str]:
        text = written if isinstance(written, str) else json.dumps({"mine": written})
        (folder / "dataset_info.json").write_text(text)
        (folder / "rows.jsonl").write_bytes(LINE)
        return show(name)

    return build


ENTRIES: Table[object] = {
    "a file": (ENTRY,),
    "cut off": ('{"mine": {', "dataset_info.json"),
    "nothing": ({}, "dataset_info.json", "mine"),
    "a file that is not there": ({"file_name": "other.jsonl"}, "other.jsonl"),
    "a file above": ({"file_name": "../rows.jsonl"}, "dataset_info.json", "leads out"),
    "an absolute file": ({"file_name": "/etc/passwd"}, "dataset_info.json", "/etc/passwd"),
}
CASES += table("dataset_info", ENTRIES, entry)
TYPES = {
    ("file_name",): "text",
    ("hf_hub_url",): "text",
    ("formatting",): "text",
    ("columns",): "mapping",
    ("columns", "prompt"): "text",
    ("tags",): "mapping",
    ("tags", "role_tag"): "text",
    ("num_samples",): "number",
    ("subset",): "text",
    ("split",): "text",
}
"""Keys of an entry, and what they hold."""


@examples(35)
@given(st.sampled_from(sorted(TYPES)).flatmap(lambda keys: st.tuples(st.just(keys), wrong("null", TYPES[keys]))))
def test_wrong_value_of_an_entry_is_refused(template: Path, setting: tuple[tuple[str, ...], Any]) -> None:
    keys, value = setting
    huge = keys == ("num_samples",) and value == 10**30
    either = huge or (isinstance(value, str) and keys != ("file_name",))
    whole = put({"tags": {}, **ENTRY}, keys, value)
    judge(Case(f"{keys}", entry(whole), "either" if either else "refused", ("dataset_info.json",)), template)


# ---------------------------------------------------------------- names

NAMES: Table[str] = {
    "empty": ("", "empty"),
    "5,000 folders": ("a/" * 5000 + "b.jsonl", "b.jsonl"),
    "NUL": ("a\0b.jsonl", "jsonl"),
    "a surrogate": ("caf\udce9.jsonl", "--dataset", "surrogate"),
    "escape codes": ("\x1b[2Jrows.jsonl", "rows.jsonl"),
    "a home that is not": ("~nobody-of-this-name/rows.jsonl", "nobody-of-this-name"),
    "a misspelt file": ("dta.jsonl", "'data.jsonl'"),
    "a negative number": ("data.jsonl#-1", "data.jsonl#-1"),
    "two schemes": ("hf::ms::a/b", "'ms'"),
    "a web address": ("https://example.com/rows.jsonl", "example.com"),
    "a subset above": ("model:../data.jsonl", "leads out"),
    "a subset of a file": ("data.jsonl:train", "data.jsonl"),
    "/dev/zero": ("/dev/zero", "/dev/zero"),
    "/proc/self/mem": ("/proc/self/mem", "/proc/self/mem"),
    "another ending": ("model/config.yaml", "config.yaml"),
}
CASES += table("name", NAMES, lambda name: lambda folder: show(name))
RENAMED: Table[str] = {
    "a list": ("[]", "columns"),
    "to a number": ('{"messages": 5}', "columns"),
    "deep": ('{"a":' * 5000, "columns"),
}
CASES += table("--columns", RENAMED, lambda text: lambda folder: show("data.jsonl", flags=["--columns", text]))

# ---------------------------------------------------------------- what is no regular file


def special(make: Callable[[Path], object], name: str = "rows") -> Build:
    """Have something made in the folder `rows`."""

    def build(folder: Path) -> Sequence[str]:
        (folder / "rows").mkdir()
        make(folder / "rows")
        return show(name)

    return build


def many(rows: Path) -> None:
    for index in range(1500):
        (rows / f"{index}.txt").touch()
        (rows / f"{index}.jsonl").write_bytes(LINE)


def looped(rows: Path) -> None:
    (rows / "rows.jsonl").write_bytes(LINE)
    (rows / "again").symlink_to(rows)


def odd_names(rows: Path) -> None:
    (rows / "a\nb.jsonl").write_bytes(b"{\n")
    Path(os.fsdecode(os.fsencode(rows) + b"/caf\xe9.jsonl")).write_bytes(LINE)


def vast(rows: Path) -> None:
    (rows / "rows.json").write_bytes(b"[" + b" " * 5000)
    os.truncate(rows / "rows.json", 5 << 30)


SPECIAL: Table[Build] = {
    "a pipe in a folder": (special(lambda rows: os.mkfifo(rows / "a.jsonl")), "a.jsonl", "pipe"),
    "a pipe for dataset_info.json": (special(lambda rows: os.mkfifo("dataset_info.json"), "data.jsonl"),),
    "a pipe for state.json": (special(lambda rows: os.mkfifo(rows / "state.json")), "state.json", "pipe"),
    "an empty folder": (special(lambda rows: None), "rows"),
    "a folder that links to itself": (special(looped),),
    "1,500 files": (special(many),),
    "names that cannot be printed": (special(odd_names), "a\\nb.jsonl:1"),
    "a subset that links out": (special(lambda rows: (rows / "etc").symlink_to("/etc"), "rows:etc"), "link"),
    "an array of 5 GB of nothing": (special(vast, "rows/rows.json"), "rows.json", "bytes"),
}
CASES += table("special", SPECIAL)


@examples(16)
@given(not_a_file, st.sampled_from(SUFFIXES))
def test_data_file_that_is_no_file_is_refused(template: Path, how: str, suffix: str) -> None:
    def build(folder: Path) -> Sequence[str]:
        NOT_A_FILE[how](folder / f"rows{suffix}")
        return show(f"rows{suffix}")

    judge(Case(how, build, names=(f"rows{suffix}",)), template)


@pytest.mark.parametrize("case", sampled(CASES))
def test_data_file_is_handled_clearly(case: Case, template: Path) -> None:
    judge(case, template)

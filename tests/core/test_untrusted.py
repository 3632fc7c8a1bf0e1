"""Untrusted files are opened, read and parsed only within limits."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from swift.errors import ModelError
from swift.untrusted import (
    check_regular,
    check_unicode,
    inside,
    is_deeper,
    parse_json,
    read_json_object,
    read_text,
    shown,
    time_limit,
    typed_path,
)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "missing", "unprintable"])
def test_non_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = {"device": Path("/dev/zero"), "unprintable": Path("a\0b")}.get(kind, tmp_path / "thing")
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "folder":
        path.mkdir()
    with pytest.raises(ModelError, match=kind if kind in ("pipe", "device", "folder") else "a|no file"):
        check_regular(path, ModelError)


def test_oversized_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match="more than 1,000 bytes"):
        read_text(path, ModelError, limit=1000)


def test_byte_order_mark_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json_object(path, ModelError) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": ', "f.json: malformed JSON"),
        ('{"a": 1,\n"b": }', "f.json:2: malformed JSON"),
        ("[" * 100_000, "nested more than 100"),
        ("[" * 150 + "]" * 150, "nested more than 100"),
        ("9" * 5000, "thousands of digits"),
        (b'{"a": "\xff"}', "not UTF-8"),
    ],
)
def test_malformed_json_is_named(text: str | bytes, reason: str) -> None:
    with pytest.raises(ModelError, match=re.escape(reason)):
        parse_json(text, "f.json", ModelError)


def test_json_depth_counts_lists_and_objects() -> None:
    assert not is_deeper([[[1]]], 3)
    assert is_deeper([[[1]]], 2)
    assert is_deeper({"a": [{}]}, 2)
    assert not is_deeper(7, 0)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", 7, None, "a\0b", "..\\x", "x" * 10_000])
def test_name_outside_folder_is_refused(tmp_path: Path, name: object) -> None:
    with pytest.raises(ModelError, match=r"index\.json"):
        inside(tmp_path, name, ModelError, source="index.json")


def test_symlink_outside_folder_is_refused_except_hub_cache(tmp_path: Path) -> None:
    """A link that leads out of the folder is refused but not one of a hub's cache."""
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "feed").write_text("{}")
    (snapshot / "good.json").symlink_to("../../blobs/feed")
    (tmp_path / "secret").write_text("")
    (snapshot / "bad.json").symlink_to("../../../secret")
    (snapshot / "loop.json").symlink_to("loop.json")
    assert inside(snapshot, "good.json", ModelError, source="index.json") == snapshot / "good.json"
    for name in ("bad.json", "loop.json"):
        with pytest.raises(ModelError, match=name):
            inside(snapshot, name, ModelError, source="index.json")


@pytest.fixture
def no_alarm() -> Iterator[None]:
    """Puts off the alarm of the test's own time-out."""
    others = signal.setitimer(signal.ITIMER_REAL, 0.0)
    yield
    signal.setitimer(signal.ITIMER_REAL, *others)


@pytest.mark.usefixtures("no_alarm")
def test_catastrophic_regex_is_interrupted() -> None:
    with pytest.raises(ModelError, match="takes too long"), time_limit(0.2, ModelError("takes too long")):
        re.fullmatch(r"(a+)+b", "a" * 200)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.usefixtures("no_alarm")
@pytest.mark.parametrize("others", [0.001, 1000.0])
def test_existing_alarms_are_kept(others: float) -> None:
    came = []
    before = signal.signal(signal.SIGALRM, lambda *_: came.append(1))
    signal.setitimer(signal.ITIMER_REAL, others)
    with time_limit(100.0, ModelError("never")):
        while others < 1 and not came:
            pass
    left = signal.setitimer(signal.ITIMER_REAL, 0.0)[0]
    signal.signal(signal.SIGALRM, before)
    assert came or 900 < left <= 1000


def test_time_limit_in_thread_sets_no_alarm() -> None:
    done = []

    def body() -> None:
        with time_limit(0.001, ModelError("never")):
            done.append(1)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done == [1]


@pytest.mark.parametrize("text", ["\ud800", "a \udfff b", "caf\udce9"])
def test_unpaired_surrogate_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match=r"--system is not valid Unicode: .*\\ud"):
        check_unicode(text, "--system", ModelError)
    check_unicode("café \U0001f600", "--system", ModelError)


def test_shown_string_is_printable_and_short() -> None:
    assert shown("a\nb\x1b[2J\udce9é") == "a\\nb\\x1b[2J\\udce9é"
    assert len(shown("x" * 10_000)) <= 200
    assert shown("x" * 10_000 + ".jsonl").endswith("x.jsonl")


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "x/" * 5000, "\udcff", "~nobody-there/x"])
def test_invalid_path_is_refused_before_lookup(name: str) -> None:
    """What cannot be a path is refused before it is looked for."""
    with pytest.raises(ModelError, match="The model"):
        typed_path(name, "The model", ModelError)

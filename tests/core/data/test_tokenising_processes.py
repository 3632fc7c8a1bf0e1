"""Processes that tokenise: what they raise, what is left when one is killed, and how much memory they take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swift.config.sections import DataSection
from swift.data import encode_corpus as tokenise
from swift.data.encode import SampleEncoder
from swift.data.pipeline import prepare_data
from swift.errors import DataError
from swift_testing.tokenizer import byte_tokenizer

pytestmark = pytest.mark.full

MEASURED = """
import json, resource, sys
from pathlib import Path
from swift.config.sections import DataSection
from swift.data.pipeline import prepare_data
from swift_testing.tokenizer import byte_tokenizer
section = DataSection(train=(sys.argv[1],), cache=Path(sys.argv[2]), workers=2)
prepare_data(section, byte_tokenizer(), encoding="chat", seed=0, say=lambda line: None)
peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps(peaks))
"""


def prepare(tmp_path: Path, rows: int = 40) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"query": f"q{i}", "response": "A."}) + "\n" for i in range(rows)))
    settings = DataSection(train=(str(path),), cache=tmp_path / "cache", workers=2)
    prepare_data(settings, byte_tokenizer(), encoding="chat", seed=1, say=lambda _: None)


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenise, "CHUNK", 8)
    monkeypatch.setattr(tokenise, "_IN_PROCESS", 8)


class Unsendable(Exception):
    """An error that another process cannot be given: it holds a function."""

    def __init__(self) -> None:
        super().__init__("it broke")
        self.reason = lambda: None


@pytest.mark.usefixtures("_small_chunks")
def test_whatever_a_worker_raises_comes_back_as_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = SampleEncoder.encode_many

    def broken(self: SampleEncoder, rows: Any) -> Any:
        if os.getpid() != parent:
            raise Unsendable
        return original(self, rows)

    parent = os.getpid()
    monkeypatch.setattr(SampleEncoder, "encode_many", broken)
    with pytest.raises(
        DataError, match=r"Tokenising failed between .*a\.jsonl:1 and .*a\.jsonl:8: Unsendable: it broke"
    ):
        prepare(tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.usefixtures("_small_chunks")
def test_a_worker_that_is_killed_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getpid()
    monkeypatch.setattr(SampleEncoder, "encode_many", lambda self, rows: os._exit(9) if os.getpid() != parent else None)
    with pytest.raises(DataError, match="A process that tokenises was killed"):
        prepare(tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    row = json.dumps({"query": "a question of some length " * 8, "response": "and an answer " * 16}) + "\n"
    peaks = []
    for rows in (3_000, 18_000):
        path = tmp_path / f"{rows}.jsonl"
        path.write_text(row * rows)
        command = [sys.executable, "-c", MEASURED, str(path), str(tmp_path / "cache")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        peaks.append(json.loads(done.stdout))
    # The tokens and weights of the 15,000 rows more are 51 MiB; what is held for each row is a few dozen bytes.
    for few, many in zip(*peaks, strict=True):
        assert many - few < 24 * 1024

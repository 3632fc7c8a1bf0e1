"""JSON that people look into, and that has a hundred thousand entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from swift.checkpoint.checksums import hash_file, write_json


def test_each_entry_of_a_section_has_a_line(tmp_path: Path) -> None:
    piece = {"offsets": [0, 0], "sizes": [8, 64], "file": "state/00000.safetensors", "key": "größe \u2028"}
    tensors = {f"layers.{n}": {"shape": [8, 64], "chunks": [piece, piece]} for n in range(3)}
    value: dict[str, Any] = {"tensors": tensors, "nothing": {}, "list": [1, None, {"a": True}], 'é "': "ü\n"}
    record = write_json(tmp_path / "file.json", value)
    text = (tmp_path / "file.json").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert record == hash_file(tmp_path / "file.json")
    lines = text.split("\n")
    assert [line.partition(":")[0] for line in lines[1:6]] == [
        ' "tensors"', '  "layers.0"', '  "layers.1"', '  "layers.2"', " },"
    ]  # fmt: skip
    assert len(lines) == 11


def test_what_is_no_section_stands_in_one_line(tmp_path: Path) -> None:
    for value in ([], {}, [{"a": 1}], None):
        write_json(tmp_path / "file.json", value)
        assert (tmp_path / "file.json").read_text() == json.dumps(value) + "\n"

"""The tutorial is followed word for word, in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pages import DOCS, blocks, commands, missing
from reader import Reader

PAGE = DOCS / "tutorial" / "first-model.md"


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    reader = Reader(folder)
    followed = []
    for block in blocks(PAGE):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")
        for command in commands(block) if block.language == "console" else ():
            done = reader.types(command)
            assert done.code == 0, f"{command.line}\n{done.printed}\n{done.complained}"
            assert missing(command.shown, done.printed) == [], f"{command.line}\n{done.printed}\n{done.complained}"
            followed.append(command.words()[:2])
    assert ["swift", "eval"] in followed
    assert ["swift", "chat"] in followed

    first, again = (_last_loss(folder / "output" / "tiny" / run) for run in ("first", "again"))
    assert again == pytest.approx(first, rel=1e-6)
    assert first < 0.2
    verified = json.loads((folder / "alphabet-model" / "verification.json").read_text())
    assert verified["verified"] is True


def _last_loss(run: Path) -> float:
    records = [json.loads(line) for line in (run / "logging.jsonl").read_text().splitlines()]
    return next(float(record["loss"]) for record in records if record.get("step") == 200)


def test_a_page_that_shows_what_is_not_printed_is_noticed() -> None:
    printed = "step 20/200  loss 3.1\nsaved /tmp/x/checkpoint-100\n"
    assert missing(["step 40/200  loss 0.5", "...", "  saved .../checkpoint-100"], printed) == []
    assert missing(["step 40/200  gain 0.5"], printed) == ["step 40/200  gain 0.5"]
    assert missing(["saved .../checkpoint-100", "step 20/200  loss 3.1"], printed) == ["step 20/200  loss 3.1"]

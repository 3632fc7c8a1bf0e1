"""The Python code of the how-to pages runs on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import DOCS, Command, blocks
from reader import Reader

PARTS = """
import json
from pathlib import Path

from swift_demo.model import write_model

write_model(Path("tiny"), hidden=32, layers=1)
with open("alphabet.jsonl", "w") as file:
    for word in ("Alfa", "Bravo", "Charlie", "Delta"):
        file.write(json.dumps({"query": f"What does {word[0]} stand for?", "response": word}) + "\\n")
"""


@pytest.mark.full
def test_python_page_trains(tmp_path: Path) -> None:
    snippets = [block.text for block in blocks(DOCS / "how-to" / "python.md") if block.language == "python"]
    assert len(snippets) == 2
    printed = _run("\n".join([PARTS, *snippets]), tmp_path)
    assert "completed 4" in printed
    assert printed.rstrip().endswith("checkpoint-4")


@pytest.mark.full
def test_engine_example_of_rollouts_page_works(tmp_path: Path) -> None:
    """The engine example of the page on rollouts runs."""
    snippets = [block.text for block in blocks(DOCS / "how-to" / "rollouts.md") if block.language == "python"]
    printed = _run("\n".join([PARTS, snippets[0]]), tmp_path)
    assert len(printed.splitlines()) == 6


@pytest.mark.full
def test_export_example_works_in_transformers_and_peft(tmp_path: Path) -> None:
    """transformers and PEFT load an export as on the page."""
    snippets = [block.text for block in blocks(DOCS / "how-to" / "export.md") if block.language == "python"]
    assert len(snippets) == 2
    training = """
from swift import Swift, TrainerConfig

options = dict(model="tiny", dataset="alphabet.jsonl", max_steps=1)
Swift.from_config(TrainerConfig(train_type="full", merge_lora=True, **options, **{"export.out": "trained"})).train()
Swift.from_config(TrainerConfig(**options, **{"export.to": "adapter", "export.out": "adapter"})).train()
Path("base").symlink_to("tiny")
"""
    _run("\n".join([PARTS, training, *snippets, "print(type(model).__name__)"]), tmp_path)


def _run(code: str, folder: Path) -> str:
    work = folder / "work"
    work.mkdir()
    (work / "script.py").write_text(code, encoding="utf-8")
    done = Reader(work).types(Command("python script.py"))
    assert done.code == 0, done.printed + done.complained
    return done.printed
